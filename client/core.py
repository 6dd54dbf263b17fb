"""The pure core of the client: calls, events and times in; requests to send and finished calls out.

One rule: no socket, no clock, no chance of its own. A shell (`sync`, `aio`) owns the sockets and
does this, with the same clock for every `now`:

1. `start` a call; send what `next_to_send` gives for each endpoint of `outbox`, and report each
   one that was handed to a live connection with `sent`. What cannot be handed over stays queued:
   a request that waits in a dead connection could take effect long after its caller was told no.
2. Report `received`, `connected`, `refused` and `disconnected` as they happen, then `tick`.
3. Wake whoever waits for the calls in `finished`, and empty it.
4. Sleep no longer than `wake_at`.

What becomes of a refused request stands in `fates`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from shardnode.client.calls import Call
from shardnode.client.envelopes import Envelopes
from shardnode.client.exchange import Exchange, State
from shardnode.client.fates import Fate, fate_of, unknown
from shardnode.client.lanes import Lanes
from shardnode.client.routes import Routes
from shardnode.client.sessions import SESSION_TTL_MS, Sessions
from shardnode.client.values import Topology
from shardnode.wire.cluster import TopologyFound
from shardnode.wire.codec import Answer
from shardnode.wire.errors import (
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    SessionExpired,
    ShardnodeError,
    Unavailable,
    WrongShard,
)
from shardnode.wire.frames import Frame, parse_reply
from shardnode.wire.kinds import Kind
from shardnode.wire.replies import decode_reply
from shardnode.wire.requests import SessionOpen
from shardnode.wire.requests import Topology as TopologyAsked

ATTEMPT_S = 1.0
"""A silent attempt is repeated after this long, then after twice that, and so on."""
CONNECT_S = 1.0
"""Another way is tried when a connection takes longer."""
PAUSE_S_FIRST = 0.01
PAUSE_S_MAX = 0.25
RENEWALS_MAX = 2
"""A session that is refused more often in one exchange is opened only after pauses."""

_OPEN = SessionOpen(SESSION_TTL_MS).encode()
_ASK = TopologyAsked().encode()
_NEVER = float("inf")


class Core:
    """One client's state; see the duties of its shell above."""

    def __init__(
        self, seeds: Sequence[str], *, random: Random, new_client_id: Callable[[], bytes]
    ) -> None:
        self.routes = Routes(seeds)
        self.sessions = Sessions(new_client_id)
        self.outbox: dict[str, deque[Exchange]] = {}
        self.finished: list[Call[Any]] = []
        self._random = random
        self._envelopes = Envelopes(self.routes, self.sessions)
        self._inflight = self._envelopes.inflight
        self._lanes = Lanes()
        self._timers: list[tuple[float, int, Exchange | Call[Any]]] = []
        self._timer_count = 0
        self._waiting: list[tuple[int, Call[Any]]] = []
        self._asking: Exchange | None = None

    # What a shell does.

    def start(self, call: Call[Any], now: float, timeout_s: float) -> None:
        """Begin a call, which ends in `finished` within its time."""
        call.deadline = now + timeout_s
        if call.needs_table and self.routes.table is None:
            self.await_table(call, 0, now)
        else:
            call.begin(self, now)

    def extend(self, call: Call[Any], now: float, timeout_s: float) -> None:
        """Somebody begins to wait for a call that was started ahead: its time counts from now."""
        call.deadline = now + timeout_s
        for exchange in call.exchanges:
            exchange.deadline = call.deadline
            self._set_timer(exchange, min(exchange.timer, exchange.deadline))

    def cancel(self, call: Call[Any], now: float) -> None:
        """Nobody waits for it any more. A write may still have its effect."""
        call.done = True
        self._waiting = [waiting for waiting in self._waiting if waiting[1] is not call]
        for exchange in list(call.exchanges):
            self._release(exchange, now)

    def next_to_send(self, endpoint: str) -> Exchange | None:
        """The next request for an endpoint; it stays there until it is `sent`."""
        queue = self.outbox.get(endpoint)
        while queue:
            exchange = queue[0]
            if exchange.state is State.QUEUED and exchange.endpoint == endpoint:
                return exchange
            queue.popleft()
        self.outbox.pop(endpoint, None)
        return None

    def sent(self, exchange: Exchange, now: float) -> None:
        """It was handed to a live connection."""
        exchange.state = State.SENT
        exchange.copies += 1
        attempt_s = (exchange.attempt_s or ATTEMPT_S) * (1 << min(exchange.silences, 6))
        exchange.attempts += 1
        self._set_timer(exchange, min(exchange.deadline, now + attempt_s))

    def received(self, frames: Sequence[Frame], now: float, endpoint: str = "") -> None:
        """A message came. One that nobody waits for is dropped: a late reply to a repeated request,
        or nothing of ours."""
        try:
            reply = parse_reply(frames)
        except InvalidRequest:
            return
        exchange = self._inflight.get(reply.header.sequence)
        if exchange is None or reply.header.kind not in (exchange.kind, 0):
            return
        self.routes.reached = True
        if self.routes.silent:
            self.routes.heard(exchange.shard, endpoint)
        if reply.header.epoch > self.routes.epoch and exchange.kind is not Kind.TOPOLOGY:
            self._refresh(now)
        try:
            answer = decode_reply(reply)
        except ShardnodeError as error:
            self._refused(exchange, error, now, said=bool(reply.header.code))
            return
        exchange.epoch = reply.header.epoch
        if exchange.problem is not None and exchange.shard is not None:
            self.routes.served(exchange.shard, endpoint)  # others had sent us on, or were silent
        self._finish(exchange, now, answer=answer)

    def connected(self, endpoint: str) -> None:
        """A connection is up."""
        self.routes.reached = True
        self.routes.down.discard(endpoint)

    def refused(self, endpoint: str, now: float) -> None:
        """A connection could not be made: what waits for it goes another way."""
        self.sessions.disconnected(endpoint)
        self.routes.down.add(endpoint)
        waiting = self.outbox.pop(endpoint, ())
        problem = Unavailable(f"no connection to {endpoint}")
        self._divert([x for x in waiting if x.state is State.QUEUED], endpoint, problem, now)

    def disconnected(self, endpoint: str, now: float) -> None:
        """A connection broke: what was sent over it is repeated."""
        sent = [x for x in self._inflight.values() if x.state is State.SENT]
        self.refused(endpoint, now)
        problem = Unavailable(f"the connection to {endpoint} was lost")
        self._divert(sent, endpoint, problem, now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            when, _, thing = heappop(timers)
            if thing.timer != when:
                continue
            if isinstance(thing, Exchange):
                self._due(thing, now)
            elif not thing.done:
                thing.due(self, now)

    def wake_at(self) -> float | None:
        """When `tick` is next needed."""
        timers = self._timers
        while timers and timers[0][0] != timers[0][2].timer:
            heappop(timers)
        return timers[0][0] if timers else None

    def give_up(self, reason: str, now: float) -> None:
        """Fail everything that is under way: the client is closed."""
        for when, _, thing in list(self._timers):
            if isinstance(thing, Call) and thing.timer == when and not thing.done:
                thing.fail(self, Unavailable(f"{reason}; it had no effect"))
        self._waiting = []
        for exchange in list(self._inflight.values()):
            self._finish(exchange, now, error=exchange.given_up(reason))

    # What a call does.

    def submit(self, exchange: Exchange, now: float) -> None:
        """Send a request of a call."""
        assert exchange.call is not None
        exchange.deadline = exchange.call.deadline
        exchange.epoch = exchange.epoch or self.routes.epoch  # by which it was placed, not sent
        if self._lanes.enter(exchange):
            self._envelopes.build(exchange, now)
            self._dispatch(exchange, now)
        else:
            self._envelopes.number(exchange)
            self._set_timer(exchange, exchange.deadline)

    def await_table(self, call: Call[Any], epoch_min: int, now: float) -> None:
        """Begin the call once a table of at least that epoch is here."""
        if self.routes.table is not None and self.routes.epoch >= epoch_min:
            call.begin(self, now)
            return
        self._waiting.append((epoch_min, call))
        self._set_timer(call, call.deadline)
        self._refresh(now)

    def pause(self, call: Call[Any], now: float, pauses: int) -> None:
        """Let a call go on, by its `due`, after a while that grows with the pauses it has made."""
        self._set_timer(call, min(call.deadline, now + self._pause_s(pauses)))

    def alarm(self, call: Call[Any]) -> None:
        """Let a call go on, by its `due`, when its time is over."""
        self._set_timer(call, call.deadline)

    def table_due(self, call: Call[Any], now: float) -> None:
        """A call that waits for the table has no time left, unless it was given more."""
        if now < call.deadline:
            self._set_timer(call, call.deadline)
            return
        self._waiting = [waiting for waiting in self._waiting if waiting[1] is not call]
        problem = self._asking.problem if self._asking else None
        reason = f": {problem.message}" if problem else ""
        where = ", ".join(self.routes.seeds)
        call.fail(self, Unavailable(f"no topology from {where} in time{reason}"))

    # Inside.

    def _dispatch(self, exchange: Exchange, now: float) -> None:
        """Queue it for the best endpoint, behind what opens its session."""
        routes = self.routes
        if exchange.shard is None:
            endpoint = routes.for_router(exchange.avoid, now)
        else:
            endpoint = routes.for_shard(exchange.shard, exchange.avoid, now, exchange.node)
        if endpoint is None:
            if not routes.reached:
                self._nobody(exchange, now)
            else:
                self._pause(exchange, now)
            return
        if exchange.write and not exchange.is_opening and exchange.identity is None:
            self._open_session(exchange, endpoint, now)
        self._queue(exchange, endpoint, now)

    def _queue(self, exchange: Exchange, endpoint: str, now: float) -> None:
        exchange.state = State.QUEUED
        exchange.endpoint = endpoint
        queue = self.outbox.get(endpoint)
        if queue is None:
            queue = self.outbox[endpoint] = deque()
        queue.append(exchange)
        self._set_timer(exchange, min(exchange.deadline, now + CONNECT_S))

    def _divert(
        self, exchanges: Sequence[Exchange], endpoint: str, problem: Unavailable, now: float
    ) -> None:
        """Send these another way, if they were on the way there. A write brings along what opens
        its session, so that alone is not repeated."""
        for exchange in exchanges:
            if exchange.endpoint != endpoint:
                continue
            if exchange.is_opening:
                self._release(exchange, now)
            else:
                exchange.problem = problem
                self._dispatch(exchange, now)

    def _open_session(self, exchange: Exchange, endpoint: str, now: float) -> None:
        assert exchange.shard is not None
        session = self.sessions.of(exchange.shard)
        if (
            session.granted
            or session.opened_at == endpoint
            or session.client_id != exchange.client_id
        ):
            return
        session.opened_at = endpoint
        opening = Exchange(Kind.SESSION_OPEN, _OPEN, shard=exchange.shard, call=None)
        opening.deadline = exchange.deadline
        self._envelopes.build(opening, now)
        self._queue(opening, endpoint, now)

    def _pause(self, exchange: Exchange, now: float) -> None:
        exchange.state = State.WAITING
        self._set_timer(exchange, min(exchange.deadline, now + self._pause_s(exchange.pauses)))
        exchange.pauses += 1

    def _pause_s(self, pauses: int) -> float:
        """A little longer each time, and not in step with others."""
        pause_s = min(PAUSE_S_MAX, PAUSE_S_FIRST * (1 << min(pauses, 10)))
        return pause_s * (0.5 + self._random.random() / 2)

    def _set_timer(self, thing: Exchange | Call[Any], when: float) -> None:
        thing.timer = when
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, thing))

    def _due(self, exchange: Exchange, now: float) -> None:
        if now >= exchange.deadline or exchange.is_opening:
            self._finish(exchange, now, error=exchange.out_of_time())
        elif not exchange.frames:  # it waits for room, and was given more time
            self._set_timer(exchange, exchange.deadline)
        else:
            if exchange.state is not State.WAITING:
                exchange.avoid = exchange.endpoint
            if exchange.state is State.SENT and exchange.endpoint is not None:
                exchange.silences += 1
                self.routes.silence(exchange.shard, exchange.endpoint, now)
            self._dispatch(exchange, now)

    def _refused(
        self, exchange: Exchange, error: ShardnodeError, now: float, *, said: bool
    ) -> None:
        """See the table in `fates`; `said`: the shard said so, else its answer was unreadable."""
        if said and not isinstance(error, OutcomeUnknown):
            exchange.no_effect()
        if isinstance(error, WrongShard):
            self._refresh(now)
        fate = fate_of(exchange, error, said=said, epoch=self.routes.epoch)
        if fate is Fate.FOLLOW:
            assert isinstance(error, NotLeader)
            self._follow(exchange, error, now)
        elif fate is Fate.PAUSE:
            exchange.problem = error
            if exchange.state is State.SENT:
                exchange.avoid = exchange.endpoint if isinstance(error, Unavailable) else None
                self._pause(exchange, now)
        elif fate is Fate.RENEW:
            self._renew(exchange, now)
        elif fate is Fate.LISTEN:
            self._set_timer(exchange, exchange.deadline)
        elif fate is Fate.UNKNOWN:
            if isinstance(error, SessionExpired):
                self.sessions.expired(exchange.client_id)
            self._finish(exchange, now, error=unknown(exchange, error))
        else:
            self._finish(exchange, now, error=error)

    def _follow(self, exchange: Exchange, error: NotLeader, now: float) -> None:
        assert exchange.shard is not None
        self.routes.lead(exchange.shard, error.leader or 0)
        if not self.routes.knows(error.leader):
            self._refresh(now)
        if exchange.state is not State.SENT:
            return
        exchange.problem = Unavailable(f"shard {exchange.shard} has no leader that answers")
        # A leader that does not answer may have a successor, whom another member knows.
        leads = error.leader and not self.routes.is_silent(exchange.shard, error.leader, now)
        exchange.avoid = None if leads else exchange.endpoint
        if leads and not exchange.pauses and exchange.attempts < 3:
            self._dispatch(exchange, now)
        else:
            self._pause(exchange, now)

    def _renew(self, exchange: Exchange, now: float) -> None:
        """Its session is gone, and it certainly had no effect: again, in a new one."""
        assert exchange.shard is not None
        refused = self.sessions.of(exchange.shard).refused
        self.sessions.expired(exchange.client_id)
        if refused:
            self._finish(exchange, now, error=refused)
            return
        self._envelopes.build(exchange, now)
        exchange.renewals += 1
        if exchange.renewals > RENEWALS_MAX:
            exchange.problem = Unavailable(f"shard {exchange.shard} keeps no session")
            self._pause(exchange, now)
        else:
            self._dispatch(exchange, now)

    def _finish(
        self,
        exchange: Exchange,
        now: float,
        *,
        answer: Answer | None = None,
        error: ShardnodeError | None = None,
    ) -> None:
        exchange.answer, exchange.error = answer, error
        self._release(exchange, now)
        if exchange.call is not None:
            exchange.call.settled(self, exchange, now)
            exchange.empty()
        elif exchange.kind is Kind.SESSION_OPEN:
            assert exchange.shard is not None
            self.sessions.opened(exchange.shard, exchange.client_id, error)
        else:
            self._learned(exchange, now)

    def _release(self, exchange: Exchange, now: float) -> None:
        """Forget it, and let those go on that it left room for."""
        exchange.state = State.DONE
        exchange.timer = 0.0
        self._envelopes.forget(exchange)
        for admitted in self._lanes.leave(exchange):
            self._envelopes.build(admitted, now)
            self._dispatch(admitted, now)

    def _refresh(self, now: float) -> None:
        """Ask for the topology, unless that is under way."""
        if self._asking is None:
            self._asking = Exchange(Kind.TOPOLOGY, _ASK, shard=None, call=None)
            self._asking.deadline = _NEVER
            self._envelopes.build(self._asking, now)
            self._dispatch(self._asking, now)

    def _learned(self, asking: Exchange, now: float) -> None:
        """The topology came, or cannot be had."""
        self._asking = None
        waiting, self._waiting = self._waiting, []
        if asking.error is not None:
            for _, call in waiting:
                call.fail(self, asking.error)
            return
        assert isinstance(asking.answer, TopologyFound)
        assert asking.endpoint is not None
        self.routes.learn(Topology.of(asking.answer), asking.endpoint)
        for epoch_min, call in waiting:
            if self.routes.epoch >= epoch_min:
                call.timer = 0.0
                call.begin(self, now)
            else:
                self._waiting.append((epoch_min, call))
        if self._waiting:  # nobody has the table yet that a shard spoke of
            self._asking = asking
            asking.state, asking.answer = State.WAITING, None
            self._envelopes.build(asking, now)
            self._pause(asking, now)

    def _nobody(self, exchange: Exchange, now: float) -> None:
        """No address has ever answered and all refuse: say so at once."""
        where = ", ".join(seed.removeprefix("tcp://") for seed in self.routes.seeds)
        self.routes.down.clear()  # a later call tries them again
        error = Unavailable(f"nothing listens at {where}; `shardnode start` starts a node")
        self._finish(exchange, now, error=error)
