"""One hub for each client and event loop: who this process is to the servers.

It gives every semaphore its lane, and every lane its post: the one of the server that keeps it.
In a cluster there are several, and lanes move between them as slots do.
"""

import asyncio
import logging
import os
import random
import socket
import time
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from ._backend import Backend, Node
from ._errors import BackendError, BackendUnavailable, SemaphoreClosed
from ._fair import FairLane
from ._keys import Address, new_hub_id
from ._lane import Lane
from ._post import LAST_WORDS, Post
from ._protocol import Introduction
from ._watch import watch
from ._wire import who_text
from ._zset import ZsetLane

if TYPE_CHECKING:
    from ._guardian import Guardian

logger = logging.getLogger("redsem_async")


class Hub:
    """Talks to one backend on one event loop, for all semaphores of a client."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        self.backend = backend
        self.loop = loop
        self.hub_id = new_hub_id()
        self.usable = True
        self.closing = False
        self._closings = 0  # calls of aclose that have not ended
        self._lanes: WeakValueDictionary[Address, Lane] = WeakValueDictionary()
        self._posts: dict[Node, Post] = {}
        self._guardian: Guardian | None = None
        self._warned = False
        self._numbers = 0
        self._tags = 0
        _HUBS.add(self)

    # -- for the lanes

    def lane(self, address: Address, label: str | None) -> Lane:
        """The lane of a semaphore, made when first asked for."""
        lane = self._lanes.get(address)
        if lane is None:
            kind = FairLane if address.mode == "fair" else ZsetLane
            post = self._post_for(address)
            lane = self._lanes[address] = post.lanes[address] = kind(self, post, address, label)
        return lane

    def drew(self, number: int) -> bool:
        """Whether *number* was drawn here."""
        return number <= self._numbers

    def new_number(self) -> int:
        """For an id, when it is written: numbers go up in the order of the wire."""
        self._numbers += 1
        return self._numbers

    def new_tag(self) -> int:
        self._tags += 1
        return self._tags

    def jitter(self) -> float:
        return 1 + random.random()

    def introduction(
        self, label: str | None, limit: int, *, deaf: bool, recovers: bool
    ) -> Introduction:
        """Who we are, for ``status`` to show, and which *limit* we declare."""
        who = who_text(
            label=label,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=round(_STARTED, 3),
            limit=limit,
        )
        return Introduction(who, deaf, recovers)

    def guardian(self) -> "Guardian":
        """Keeps permits refreshed while this loop is blocked; made when first asked for."""
        if self._guardian is None:
            from ._guardian import Guardian

            self._guardian = Guardian(self.backend, self.loop, self.hub_id)
        return self._guardian

    # -- for the posts

    def unavailable(self, name: str, place: str, cause: Exception | None) -> BackendUnavailable:
        """An error that says what could not be reached, and why."""
        reason = f": {cause}" if cause and str(cause) else ""
        error = BackendUnavailable(name, f"{place} could not be asked{reason}")
        error.__cause__ = cause
        return error

    def turned_away(self, name: str, place: str, cause: BaseException) -> BackendError:
        """An error that says who refused us, and why."""
        error = BackendError(name, f"{place} turned us away: {cause}")
        error.__cause__ = cause
        return error

    def warn_of_deafness(self, place: str, error: Exception) -> None:
        """Say once that no messages come."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s lets us hear no messages (%s): waiters are served by heartbeats alone",
                place,
                error,
            )

    def post_at(self, node: Node) -> Post:
        """The post of *node*, made when first asked for."""
        post = self._posts.get(node)
        if post is None:
            post = self._posts[node] = Post(self, node)
        return post

    def _post_for(self, address: Address) -> Post:
        return self.post_at(self.backend.node_for(address))

    def open_posts(self) -> set[Post]:
        """Those that keep a link, or open one."""
        return {post for post in self._posts.values() if post.open}

    async def ended(self, post: Post) -> None:
        """*post* has closed its link. Whoever comes back when all have finds another hub id."""
        if not post.lanes and post.outage_since is None:
            self._posts.pop(post.node, None)
        if not any(other.open for other in self._posts.values()):
            self.hub_id = new_hub_id()
            guardian, self._guardian = self._guardian, None
            if guardian is not None:
                await guardian.end()

    # -- the end

    async def aclose(self, drain: float) -> None:
        """End waiting, give holders *drain* seconds, release what they still hold, and close."""
        self._closings += 1
        self.closing = True
        try:
            for lane in list(self._lanes.values()):
                lane.fail_waiting(partial(SemaphoreClosed, lane.address.name))
            if drain > 0:
                await self._until_quiet(drain)
            for lane in list(self._lanes.values()):
                for claim in lane.held():
                    lane.close(claim)
            await self._until_quiet(LAST_WORDS)
            for post in list(self._posts.values()):
                post.give_up()
            for lane in list(self._lanes.values()):
                lane.fail_all(partial(SemaphoreClosed, lane.address.name))
            for post in list(self._posts.values()):
                await post.close()
        finally:
            self._closings -= 1
            self.closing = self._closings > 0

    async def _until_quiet(self, most: float) -> None:
        deadline = self.loop.time() + most
        while busy := [post for post in self._posts.values() if post.has_work()]:
            if self.loop.time() >= deadline:
                break
            await busy[0].until_quiet(deadline)

    def orphan(self) -> None:
        """We are a forked child: the links and all permits are the parent's."""
        self.usable = False
        for lane in list(self._lanes.values()):
            for claim in lane.held():
                claim.on_lost = None
                claim.lose("the process that held it was forked", meant=True)
        _ORPHANED.append(self)


_STARTED = time.time()
_HUBS: WeakSet[Hub] = WeakSet()
_BY_CLIENT: WeakValueDictionary[tuple[int, int], Hub] = WeakValueDictionary()
_ORPHANED: list[Hub] = []  # kept, so that nothing they inherited is closed


def _after_fork() -> None:
    watch.begin_anew()
    for hub in list(_HUBS):
        hub.orphan()
    _HUBS.clear()
    _BY_CLIENT.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def hub_for(backend: Backend, owner: object) -> Hub:
    """The hub of the client *owner* in the running loop, made when first asked for."""
    loop = asyncio.get_running_loop()
    # A hub keeps both alive, so neither number can come to mean something else meanwhile.
    key = (id(owner), id(loop))
    hub = _BY_CLIENT.get(key)
    if hub is None or not hub.usable:
        hub = _BY_CLIENT[key] = Hub(backend, loop)
    return hub


def known_hub(owner: object) -> Hub | None:
    """The hub of the client *owner* in the running loop, if there is one."""
    return _BY_CLIENT.get((id(owner), id(asyncio.get_running_loop())))
