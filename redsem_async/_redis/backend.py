"""Redis as a place for semaphores, on one server or a cluster of them."""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakValueDictionary

from redis.crc import key_slot

from redsem_async._core.keys import Address
from redsem_async._core.log import facts
from redsem_async._protocol.backend import Backend, Link, Listener, Node, OneNode
from redsem_async._protocol.errors import CommandError, ErrorKind

from .connection import Connection
from .dial import (
    ClusterClient,
    Destination,
    Endpoint,
    Pool,
    SingleClient,
    checked_client,
    dial,
    known_nodes,
    on_close,
    place_of,
    slots_at,
    target_of,
)
from .inquiry import Asker, Met

logger = logging.getLogger("redsem_async")

EXPLORING_TIME = 1.0  # seconds to wait for one node's reply on which node keeps what
MANY = 10  # connections of one process to one server, beyond which a warning is due


def redis_backend(client: object) -> Backend:
    """Where *client* keeps semaphores. Raises TypeError unless it is one of redis.asyncio."""
    checked = checked_client(client)
    if isinstance(checked, SingleClient):
        return RedisBackend(checked.connection_pool)
    return ClusterBackend(checked)


class RedisNode:
    """One server, which is asked once what it is like.

    Attributes:
        place: host and port, never with credentials.
    """

    place: str
    _known: Met | None = None

    async def _connect(self, target: Destination, listener: Listener) -> Connection:
        opened = await dial(target, None if self._known else _asker(listener))
        if self._known is None and opened.met is not None:
            self._known = opened.met
            _log(self.place, opened.met)
        link = Connection(opened._replace(met=self._known), listener)
        _links[self.place, listener.hub_id] = link
        _warn_of_many(self.place)
        return link


class RedisBackend(OneNode, RedisNode):
    """Semaphores kept by one server, reached with the settings of the user's pool."""

    def __init__(self, pool: Pool) -> None:
        self.place = place_of(pool)
        self._pool = pool

    @property
    def owner(self) -> object:
        """The pool, because a client may be made for each request."""
        return self._pool

    async def connect(self, listener: Listener) -> Link:
        return await self._connect(target_of(self._pool), listener)

    def on_close(self, callback: Callable[[], None]) -> None:
        on_close(self._pool, "disconnect", callback)


class ClusterNode(RedisNode):
    """One node of a cluster."""

    def __init__(self, backend: "ClusterBackend", endpoint: Endpoint) -> None:
        self.place = "Redis at {}:{}".format(*endpoint)
        self.endpoint = endpoint
        self._backend = backend

    async def connect(self, listener: Listener) -> Link:
        await self._backend.meet(self)
        return await self._connect(self.target, listener)

    @property
    def target(self) -> Destination:
        """The node, with the settings of the user's client."""
        node, *_ = self._backend.client.nodes_manager.startup_nodes.values()
        host, port = self.endpoint
        settings = node.connection_kwargs | {"host": host, "port": port}
        settings.pop("redis_connect_func", None)  # a replica would answer reads, and we write
        return Destination(node.connection_class, settings, clustered=True)


class ClusterBackend:
    """Semaphores spread over the nodes of a cluster, reached with the user's client's settings.

    The first node that is reached names the others, so that they can be asked when it stops
    replying. Apart from that, a node that does not keep a semaphore says which one does.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self._met = False
        self._nodes: dict[Endpoint, ClusterNode] = {}
        self._masters: dict[int, ClusterNode] = {}  # by slot

    @property
    def owner(self) -> object:
        """The client, which has no pool."""
        return self.client

    def node_for(self, address: Address) -> Node:
        """The master of its slot, or any node while that is not known."""
        return self._masters.get(_slot(address)) or random.choice(self._known())

    def redirected(self, address: Address, error: CommandError, *, here: Node) -> Node | None:
        """The node that MOVED or ASK names. MOVED is remembered."""
        if error.endpoint is None or not isinstance(here, ClusterNode):
            return None
        host, port = error.endpoint
        node = self._node((host or here.endpoint[0], port))
        if error.kind is ErrorKind.MOVED:
            self._masters[_slot(address)] = node
        return node

    async def meet(self, node: ClusterNode) -> None:
        """Ask *node* about the other nodes, unless they are known."""
        if not self._met:
            self._met = await self._ask(node)

    async def explore(self, *, but: Node) -> None:
        """Ask the nodes, except that one, until one answers."""
        others = [node for node in self._known() if node is not but]
        random.shuffle(others)
        for node in others:
            if await self._ask(node):
                return

    def on_close(self, callback: Callable[[], None]) -> None:
        on_close(self.client, "aclose", callback)

    async def _ask(self, node: ClusterNode) -> bool:
        """Learn from *node* which node keeps which slots. Returns whether it replied."""
        with suppress(Exception):
            async with asyncio.timeout(EXPLORING_TIME):
                ranges = await slots_at(node.target)
            for first, last, endpoints in ranges:
                master, *_ = [self._node(endpoint) for endpoint in endpoints]
                self._masters |= dict.fromkeys(range(first, last + 1), master)
            return True
        return False

    def _node(self, endpoint: Endpoint) -> ClusterNode:
        endpoint = self.client.nodes_manager.remap_host_port(*endpoint)
        return self._nodes.setdefault(endpoint, ClusterNode(self, endpoint))

    def _known(self) -> list[ClusterNode]:
        for endpoint in known_nodes(self.client):
            self._nodes.setdefault(endpoint, ClusterNode(self, endpoint))
        return list(self._nodes.values())


_links: WeakValueDictionary[tuple[str, str], Connection] = WeakValueDictionary()
_warned_of_many: set[str] = set()  # places


def _warn_of_many(place: str) -> None:
    if place in _warned_of_many:
        return
    # Not by iteration over a dictionary that other threads change.
    links = [link for each in _links.valuerefs() if each.key[0] == place and (link := each())]
    hubs = sum(link.open for link in links)
    if hubs > MANY:
        _warned_of_many.add(place)
        logger.warning(
            "%d clients of this process each have a connection to %s: create one client per "
            "process (a module-level variable is fine), or close each client after use",
            hubs,
            place,
            extra=facts("many clients", place=place),
        )


def _asker(listener: Listener) -> Asker | None:
    """Who asks what a server is like. None where *listener* has no semaphore of its own."""
    address = next(iter(listener.semaphores), None)
    return None if address is None else Asker(listener.hub_id, address)


def _log(place: str, met: Met) -> None:
    """Log what is wanting in a server."""
    if met.evicts is not None:
        logger.warning(
            "%s evicts keys when its memory is full (maxmemory-policy %s): permits are lost with "
            "them. Use noeviction, which rejects new ones instead",
            place,
            met.evicts,
            extra=facts("eviction", place=place),
        )
    if met.worked_around:
        logger.warning(
            "%s lacks features that the library works around: %s",
            place,
            "; ".join(met.worked_around),
            extra=facts("worked around", place=place),
        )


def _slot(address: Address) -> int:
    return key_slot(address.keys[0].encode())
