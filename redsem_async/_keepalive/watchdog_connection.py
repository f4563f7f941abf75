"""The watchdog's own connection to a server. It gets no push messages and sends refreshes only."""

import asyncio
import logging
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from redsem_async._core.backoff import delays
from redsem_async._core.clock import now as clock
from redsem_async._core.keys import Address
from redsem_async._core.lease import (
    CONNECT_TIMEOUT,
    MAX_REPLY_TIMEOUT,
    Lost,
    Outcome,
    after_refresh,
)
from redsem_async._hub.claim import Claim, State
from redsem_async._hub.operations.refresh import (
    MAX_HEAVY_REFRESHES,
    MAX_REFRESHES,
    is_incomplete,
    note_hold_left,
    refresh_of,
    restore_of,
)
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.backend import Backend, Command, Link, Node
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Refresh, Restore
from redsem_async._protocol.pushes import Push
from redsem_async._protocol.replies import AnyReply, Reply

logger = logging.getLogger("redsem_async")

LOOKS = 12  # in a lease, the shortest of those watched


class _Batch(Command):
    """Permits to be refreshed, or restored."""

    __slots__ = ("claims", "remote")

    def __init__(
        self, remote: RemoteSemaphore, operation: Refresh | Restore, claims: Sequence[Claim]
    ) -> None:
        super().__init__(remote.ref, operation)
        self.remote: RemoteSemaphore = remote
        self.claims: Sequence[Claim] = claims


class WatchdogConnection:
    """A connection that is made again when it breaks, in the watchdog's thread.

    *lease* gives the shortest lease that is watched. *look_soon* has the watchdog look again;
    *moved* tells it that another node keeps a semaphore; *to_loop* calls in the hub's loop.
    """

    wants_push = False
    semaphores: Sequence[Address] = ()

    def __init__(
        self,
        hub_id: str,
        backend: Backend,
        node: Node,
        trust_lock: threading.Lock,
        *,
        lease: Callable[[], float],
        look_soon: Callable[[], None],
        moved: Callable[[RemoteSemaphore, Node], None],
        to_loop: Callable[..., None],
    ) -> None:
        self.hub_id = hub_id
        self._backend = backend
        self._node = node
        self._trust_lock = trust_lock
        self._lease = lease
        self._look_soon = look_soon
        self._moved = moved
        self._to_loop = to_loop
        self._link: Link | None = None
        self._lost = asyncio.Event()
        self._in_flight: deque[_Batch] = deque()
        self._delays = delays(random.random)
        self._warned = False
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        timeout = 0.0
        while True:
            lease = self._lease()
            await asyncio.sleep(min(next(self._delays), lease / LOOKS))
            self._lost.clear()
            # Short at first, and doubled each time, because the server may be distant or busy.
            timeout = min(max(lease / 4, 0.25, 2 * timeout), CONNECT_TIMEOUT)
            try:
                async with asyncio.timeout(timeout):
                    self._link = await self._node.connect(self)
            except Exception as error:  # noqa: BLE001 - the network's, or of the user's making
                if not self._warned:
                    self._warned = True
                    place = self._node.place
                    facts = {"event": "no second connection", "place": place}
                    text = "a second connection to %s failed: %s"
                    reason = str(error) or type(error).__name__
                    logger.warning(text, place, reason, extra=facts)
                continue
            timeout = 0.0
            self._look_soon()
            await self._lost.wait()

    async def close(self) -> None:
        """The thread ends."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._link is not None:
            await self._link.close()

    def refresh(self, claims: Mapping[Claim, RemoteSemaphore]) -> None:
        """Refresh *claims*, unless a reply is still awaited."""
        link = self._link
        if link is None:
            return
        if self._in_flight:
            timeout = min(max(self._lease() / 6, 0.1), MAX_REPLY_TIMEOUT)
            if clock() - self._in_flight[0].sent_at > timeout:
                self.connection_lost(TimeoutError("no answer came"))
                link.abort()
        elif claims and link.writable:
            groups: defaultdict[tuple[object, ...], list[Claim]] = defaultdict(list)
            for claim, remote in claims.items():
                groups[remote, claim.terms.lease_ms, claim.terms.max_hold].append(claim)
            for group in groups.values():
                remote = claims[group[0]]
                heavy = any(claim.permits > 1 for claim in group)
                size = MAX_HEAVY_REFRESHES if heavy else MAX_REFRESHES
                for start in range(0, len(group), size):
                    part = group[start : start + size]
                    self._in_flight.append(_Batch(remote, refresh_of(part), part))
            link.send(list(self._in_flight), clock())

    def _restore(self, link: Link, remote: RemoteSemaphore, claims: Sequence[Claim]) -> None:
        """The server does not know *claims*, or all of them: it may have lost its state."""
        hub_info = remote.introduction.hub_info()
        operation = restore_of(claims)._replace(hub_info=hub_info)
        self._in_flight.append(_Batch(remote, operation, claims))
        link.send([self._in_flight[-1]], clock())

    # -- what the link says

    def reply_received(self, command: Command, reply: AnyReply | CommandError) -> None:
        batch = self._in_flight.popleft()
        assert batch is command
        if isinstance(reply, CommandError):
            self._error_received(batch.remote, reply)
            return
        assert isinstance(reply, Reply)
        self._delays, self._warned = delays(random.random), False
        missing: list[Claim] = []
        refreshes = isinstance(batch.operation, Refresh)
        for claim, held in zip(batch.claims, reply.answers, strict=True):
            if held:
                if refreshes:
                    note_hold_left(claim, held, batch.sent_at)
                self._refreshed(batch.remote, claim, Outcome.RENEWED, batch.sent_at)
                if is_incomplete(held):
                    missing.append(claim)
            elif batch.semaphore.recovers and refreshes:
                missing.append(claim)
            else:
                self._refreshed(batch.remote, claim, Outcome.GONE, batch.sent_at)
        missing = [claim for claim in missing if claim.trusted_at(clock())]
        if missing and self._link is not None:
            self._restore(self._link, batch.remote, missing)

    def _error_received(self, remote: RemoteSemaphore, error: CommandError) -> None:
        """The next look sends it again: at once, and elsewhere, where that helps."""
        match error.kind:
            case ErrorKind.RETRY_NOW:
                self._look_soon()
            case ErrorKind.MOVED:
                node = self._backend.redirected(remote.address, error, here=self._node)
                if node is not None:
                    self._moved(remote, node)
            case _:
                pass

    def _refreshed(
        self, remote: RemoteSemaphore, claim: Claim, outcome: Outcome, sent_at: float
    ) -> None:
        """A refresh that was sent at *sent_at* has ended."""
        now, trusted = clock(), claim.trusted_until
        if claim.state is not State.HELD or now >= trusted:
            return  # given back meanwhile; or perhaps seen as lost, and not to be revived
        if outcome is Outcome.GONE:
            claim.disown()
            self._to_loop(remote.refreshes.refreshed, claim, outcome, sent_at, now)
            return
        lease = claim.terms.lease
        verdict = after_refresh(trusted, lease, outcome, sent_at=sent_at, now=now)
        with self._trust_lock:
            # Unless the loop writes a detach, which may be carried out after the refresh.
            if not isinstance(verdict, Lost) and sent_at > claim.renewable_after:
                claim.renew(verdict)

    def push_received(self, prefix: str, push: Push) -> None:
        """Push messages are for the hub."""

    def unsubscribed(self, address: Address) -> None:
        """It was not subscribed."""

    def push_unavailable(self, error: Exception) -> None:
        """It gets no push messages in any case."""

    def resume_writing(self) -> None:
        self._look_soon()

    def connection_lost(self, error: Exception) -> None:
        self._link = None
        self._in_flight.clear()
        self._lost.set()
