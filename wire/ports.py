"""Which ports a node has, by the port P of its router.

    P            the router                P + 100 + N   shard N, for clients
    P + 80       HTTP, unless told else    P + 200 + N   shard N, for its peers

One rule: the address of a node's router says where everything of that node is, so it is all that
nodes have to know of each other.
"""

HTTP_PORT_OFFSET = 80
DIRECT_PORT_OFFSET = 100
PEER_PORT_OFFSET = 200

PORT_MAX = 65_535


def shifted(endpoint: str, offset: int) -> str:
    """The same host, another port."""
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + offset}"
