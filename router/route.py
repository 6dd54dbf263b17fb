"""Where a request goes, or what is answered instead. Pure: frames in, a decision out.

    request                                          what happens
    -----------------------------------------------  ------------------------------------------
    not this protocol, too large, unknown version    a typed error, as far as it can be addressed
    TOPOLOGY, EXPLAIN, STATUS without a shard        answered here, from what the supervisor told
    anything else                                    forwarded to `wire.routing.entry_shard`
    … of a shard that is not on this node            `Unavailable`, naming the shard

The one rule: whatever the frames are, `route` returns; it never raises and never changes what it
was given, so a stranger cannot stop the front door.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardnode.router.settings import RouterSettings
from shardnode.wire.cluster import Route, StatusFound, TopologyFound, cut, mark_columns
from shardnode.wire.codec import Body
from shardnode.wire.errors import Overloaded, ShardnodeError, Unavailable
from shardnode.wire.frames import (
    PLACE_FOR_ME,
    Frame,
    Request,
    build_reply,
    parse_request,
    return_address,
)
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import SLOT_SHIFT, PlacementTable, hash_of_key, initial_table
from shardnode.wire.ports import DIRECT_PORT_OFFSET, shifted
from shardnode.wire.replies import build_error
from shardnode.wire.requests import Explain, Status, Topology
from shardnode.wire.routing import entry_shard

Row = Mapping[str, Any]
"""One shard in the supervisor's status, with the names of `status --json`."""


class Routes:
    """What the router knows, and what follows from it for a request."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self.table = initial_table(settings.shards)
        own = {settings.node: settings.advertise or settings.listen}
        self._nodes: dict[int, str] = {**own, **settings.nodes}
        self._rows: dict[int, Row] = {shard: _unknown(shard) for shard in sorted(settings.workers)}
        self._own: dict[int, Callable[[Request], Body]] = {
            Kind.TOPOLOGY: self._topology,
            Kind.EXPLAIN: self._explain,
            Kind.STATUS: self._status,
        }

    def route(self, frames: Sequence[Frame]) -> tuple[int, Request] | list[Frame]:
        """(the worker to forward to, the request), or the frames of the reply."""
        try:
            request = parse_request(frames)
            if request.header.kind in self._own and request.prefix in (None, PLACE_FOR_ME):
                return self._answer(request)
            shard = entry_shard(request, self.table)
        except ShardnodeError as error:
            return self.refuse(frames, error)
        if shard not in self._rows:
            return self.refuse(frames, Unavailable(self._elsewhere(shard)))
        return shard, request

    def refuse(self, frames: Sequence[Frame], error: ShardnodeError) -> list[Frame]:
        """The reply that says why a request was not forwarded."""
        return build_error(return_address(frames), error, shard=None, epoch=self.table.epoch)

    def down(self, shard: int) -> Unavailable:
        """Why nothing can be sent to a worker."""
        state = self._rows[shard]["state"]
        parked = "; it died too often and was parked: see the node's log" * (state == "parked")
        return Unavailable(
            f"expected a worker of shard {shard} on node {self._settings.node}, found none"
            f" connected (last seen {state}){parked}; nothing was done, try again"
        )

    def full(self, shard: int, limit: int, under_way: int) -> Overloaded:
        """Why a worker that is there takes nothing more."""
        return Overloaded(
            f"expected at most {limit} requests waiting for shard {shard}, found {under_way};"
            " nothing was done, slow down and try again",
            lag=under_way,
            limit=limit,
        )

    def learn_table(self, text: str) -> None:
        """Take over a newer placement table; raises an `InvalidRequest` if it is not whole."""
        table = PlacementTable.decode(b64decode(text))
        if table.epoch >= self.table.epoch:
            self.table = table

    def learn_members(self, members: Mapping[str, str]) -> None:
        """The nodes of the cluster, and where their routers are."""
        self._nodes = {int(node): router for node, router in members.items()}

    def learn_status(self, status: Mapping[str, Any]) -> set[int]:
        """Take over what the supervisor sees; returns the shards whose process is another one."""
        renewed = set()
        for row in status["shards"]:
            shard = row["id"]
            if shard in self._rows:
                if row["pid"] != self._rows[shard]["pid"]:
                    renewed.add(shard)
                self._rows[shard] = row
        return renewed

    def _answer(self, request: Request) -> list[Frame]:
        body = self._own[request.header.kind](request).encode()
        to = request.return_address()
        return build_reply(to, body, shard=None, epoch=self.table.epoch)

    def _topology(self, request: Request) -> TopologyFound:
        Topology.decode(request.body)
        settings, rows = self._settings, self._rows
        nodes = self._nodes
        replicas = [
            (
                shard,
                node,
                settings.direct[shard]
                if node == settings.node
                else shifted(router, DIRECT_PORT_OFFSET + shard),
            )
            for shard in sorted(settings.direct)
            for node, router in sorted(nodes.items())
        ]
        return TopologyFound(
            cluster=settings.cluster,
            table=self.table.encode(),
            leaders=[
                (rows[shard]["leader"] or 0) if shard in rows else 0
                for shard in range(self.table.shards)
            ],
            node_ids=sorted(nodes),
            node_endpoints=[nodes[node] for node in sorted(nodes)],
            replica_shards=[shard for shard, _, _ in replicas],
            replica_nodes=[node for _, node, _ in replicas],
            replica_endpoints=[endpoint for _, _, endpoint in replicas],
            cluster_id=settings.cluster_id,
        )

    def _explain(self, request: Request) -> Route:
        hashed = hash_of_key(Explain.decode(request.body).key)
        slot = hashed >> SLOT_SHIFT
        shard = self.table.shard_of_slot(slot)
        row = self._rows.get(shard) or _unknown(shard)
        return Route(hashed, slot, shard, row["leader"], self.table.epoch, row["pid"], row["core"])

    def _status(self, request: Request) -> StatusFound:
        Status.decode(request.body)
        rows = [self._rows[shard] for shard in sorted(self._rows)]

        def column(name: str) -> list[Any]:
            return [row[name] for row in rows]

        return StatusFound(
            node_id=self._settings.node,
            cluster=self._settings.cluster,
            epoch=self.table.epoch,
            ids=column("id"),
            pids=column("pid"),
            cores=column("core"),
            roles=column("role"),
            leaders=column("leader"),
            terms=column("term"),
            commit_indexes=column("commit_index"),
            applied_indexes=column("applied_index"),
            durable_indexes=column("durable_index"),
            truncation_indexes=column("truncation_index"),
            states=column("state"),
            restarts=column("restarts"),
            digests=[int(row["digest"], 16) for row in rows],
            needed_indexes=column("needed_index"),
            snapshot_indexes=column("snapshot_index"),
            log_bytes=column("log_bytes"),
            errors=[cut(row["error"]) for row in rows],
            **mark_columns({row["id"]: row["watermarks"] for row in rows}),
        )

    def _elsewhere(self, shard: int) -> str:
        here = ", ".join(map(str, sorted(self._rows)))
        return (
            f"expected a shard of node {self._settings.node} ({here}), found {shard}; ask a node"
            " that holds it: the topology names them"
        )


def _unknown(shard: int) -> Row:
    """A shard of which nothing has been heard yet."""
    indexes = (
        *("term", "commit_index", "applied_index", "durable_index", "truncation_index"),
        *("needed_index", "snapshot_index", "log_bytes"),
    )
    return {
        "id": shard,
        "pid": None,
        "core": None,
        "role": "follower",
        "leader": None,
        "state": "starting",
        "restarts": 0,
        "digest": "0" * 16,
        "error": "",
        "watermarks": [],
        **dict.fromkeys(indexes, 0),
    }
