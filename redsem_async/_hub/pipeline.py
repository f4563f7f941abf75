"""One pipeline per server, with commands out, and replies and push messages in.

It collects what the semaphores want written into few writes. Writing and reading happen in
callbacks of the event loop, so no caller's cancellation can interrupt a command. Tasks and timers
have an empty context, because the context of a caller would stay alive with them, and its trace
would appear in what others log.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextvars import Context
from weakref import WeakValueDictionary

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode
from redsem_async._core.lease import MAX_REPLY_TIMEOUT, reply_timeout
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import Command, Link, Node
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.pushes import Push
from redsem_async._protocol.replies import AnyReply

from . import machine
from .commands.base import AnyBatch
from .identity import HubIdentity
from .outage import Outage
from .redirects import Redirects
from .remote_semaphore import RemoteSemaphore
from .route import LinkState
from .window import Window

logger = logging.getLogger("redsem_async")


class Pipeline:
    """The commands in flight on the connection to one server, and those to be written next.

    *connect* has a connection made where there is none.
    """

    def __init__(
        self,
        identity: HubIdentity,
        node: Node,
        redirects: Redirects,
        connect: Callable[[], None],
    ) -> None:
        self.identity: HubIdentity = identity
        self.semaphores: WeakValueDictionary[Address, RemoteSemaphore] = WeakValueDictionary()
        self._kinds: set[tuple[Mode, Clock]] = set()  # of these semaphores
        self.state: LinkState = LinkState(node)
        self.window: Window = Window()
        self.outage: Outage = Outage(identity.loop, self.state, self.semaphores)
        self.stirred: asyncio.Event = asyncio.Event()  # there is something to do, or to look at
        self.probe: asyncio.Event = asyncio.Event()  # a caller does not wait for an attempt
        self.active_at: float = 0.0
        self.lost: bool = False  # the last connection broke
        self.leaving: bool = False  # the client was closed, so no idle connection is kept
        self.reply_timeout: float = MAX_REPLY_TIMEOUT
        self._loop = identity.loop
        self._connect = connect
        self.redirects: Redirects = redirects
        self._ready, self._in_flight = redirects.ready, redirects.in_flight
        self._quiet: asyncio.Future[None] | None = None
        self._flush_due = False
        self._suspended: asyncio.TimerHandle | None = None  # the server is busy
        self._reply_timer: asyncio.TimerHandle | None = None

    @property
    def hub_id(self) -> str:
        """The id of this process's hub."""
        return self.identity.id

    def add(self, remote: RemoteSemaphore) -> None:
        """*remote* is written here from now on."""
        address = remote.address
        self.semaphores[address] = remote
        self._kinds.add((address.mode, address.clock))

    # -- for the semaphores

    def settle(self, remote: RemoteSemaphore, *, asked: bool = False, size: int = 0) -> None:
        """Do what is to be done after the state of *remote* was changed.

        What a task asks for waits for the end of this turn of the loop, so that others may join
        it. But where the last command was for a lone task and has its reply, or where there is
        enough for a command, it is written now.
        """
        state = remote.state
        if self._loop.is_closed():
            return  # a task is collected after its loop was closed by hand
        if remote.timer is not None and machine.is_idle(state):
            self._rest(remote)
        if self._quiet is not None:
            self._check_quiet()
        if state.look_at < remote.look_at:
            self._look_later(remote)
        if state.stirred:
            state.stirred = False
            if not remote.scheduled:
                remote.scheduled = True
                self._ready.append(remote)
                if self.state.link is None:
                    self.stirred.set()
                    self._connect()
                elif asked and self.window.lone and not (self._in_flight or self._flush_due):
                    self.flush()
                    return
                else:
                    self._flush_soon()
        if (
            size >= self.window.batch_target
            and self._flush_due
            and len(self._in_flight) < self.window.size
        ):
            self.flush()

    def _look_later(self, remote: RemoteSemaphore) -> None:
        """Look at the state of *remote* again when it says so."""
        if remote.timer is not None:
            remote.timer.cancel()
        remote.look_at = at = remote.state.look_at
        delay = max(0.0, at - clock())
        remote.timer = self._loop.call_later(delay, self._look, remote, at, context=Context())

    def _look(self, remote: RemoteSemaphore, at: float) -> None:
        remote.timer, remote.look_at = None, math.inf
        remote.change(machine.look, max(at, clock()))  # a loop's timers may be early

    def _rest(self, remote: RemoteSemaphore) -> None:
        """Nothing is left of *remote*, so no timer keeps it from being forgotten."""
        if remote.timer is not None:
            remote.timer.cancel()
            remote.timer, remote.look_at = None, math.inf
        machine.rest(remote.state)

    def probe_now(self) -> None:
        self.probe.set()

    def expect_lease(self, lease: float) -> None:
        if reply_timeout(lease) < self.reply_timeout:
            self.reply_timeout = reply_timeout(lease)
            if self._reply_timer is not None:
                self._reply_timer.cancel()
                self._reply_timer = None
                if self._in_flight:
                    self._await_reply(clock())

    # -- writing

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush, context=Context())

    def flush(self) -> None:
        """Write what the semaphores want written, in turns, as far as the window goes."""
        self._flush_due = False
        if logger.isEnabledFor(logging.DEBUG) is not observers.debug:
            observers.follow_level()
        link = self.state.link
        if link is None or self._suspended is not None or not link.writable:
            return
        now = clock()
        ready, in_flight = self._ready, self._in_flight
        room = self.window.size - len(in_flight)
        batches: list[AnyBatch] = []
        while ready and len(batches) < room:
            remote = ready.popleft()
            batch = machine.next_command(remote.state, now)
            if batch is None:
                remote.scheduled = False
            else:
                batches.append(batch)
                in_flight.append((remote, batch))
                ready.append(remote)
        if not batches:
            return
        self.window.lone = len(batches) == 1 and len(batches[0].items) <= 1
        self.active_at = now
        link.send(batches, now)
        if self._reply_timer is None:
            self._await_reply(now)

    def resume_writing(self) -> None:
        self.flush()

    def _resume(self) -> None:
        self._suspended = None
        self.flush()

    # -- the reply timeout

    def _await_reply(self, now: float) -> None:
        """Look again when the oldest command in flight should have its reply."""
        late_in = self._in_flight[0][1].sent_at + self.reply_timeout - now
        self._reply_timer = self._loop.call_later(
            max(0.0, late_in), self._check_reply, context=Context()
        )

    def _check_reply(self) -> None:
        self._reply_timer = None
        if not self._in_flight or self.state.link is None:
            return
        now = clock()
        if now - self._in_flight[0][1].sent_at >= self.reply_timeout - 0.001:
            self._drop(TimeoutError(f"no answer in {self.reply_timeout:.3g} s"))
        else:
            self._await_reply(now)

    # -- what the link says

    def reply_received(self, command: Command, reply: AnyReply | CommandError) -> None:
        remote, batch = self._in_flight.popleft()
        assert batch is command
        now = clock()
        link_state, round_trip = self.state, now - batch.sent_at
        if round_trip < link_state.round_trip:
            link_state.round_trip = round_trip
            self.window.fit(round_trip)
        redirect = remote.state.route.redirect
        if isinstance(reply, CommandError):
            batch.settle_error(self._error_received(remote, reply), now)
        else:
            if link_state.error is not None or self.outage.logged_since is not None or redirect:
                self._carried_out(remote)
            batch.apply(reply, now)
        self.settle(remote)
        if remote.state.route.redirect is not None:
            self.redirects.follow(remote)
        if self._ready:
            self._flush_soon()
        if self._quiet is not None or self.leaving:
            self._check_quiet()

    def _error_received(self, remote: RemoteSemaphore, error: CommandError) -> CommandError:
        match error.kind:
            case ErrorKind.BUSY | ErrorKind.READ_ONLY:
                self.outage.begin(error.error, fail_not_waiting=True)
                if self._suspended is None:
                    self._suspended = self._loop.call_later(
                        self.outage.next_suspension(), self._resume, context=Context()
                    )
            case ErrorKind.RETRY_LATER:
                self.redirects.suspend(remote, error.error)
            case ErrorKind.MOVED | ErrorKind.ASK:
                return self.redirects.redirected(remote, error)
            case ErrorKind.RETRY_NOW:
                pass
            case _:
                self._carried_out(remote)
        return error

    def _carried_out(self, remote: RemoteSemaphore) -> None:
        """The server did its part."""
        self.redirects.carried_out(remote)
        self.outage.end()

    def push_received(self, prefix: str, push: Push) -> None:
        for mode, kept_by in self._kinds:
            remote = self.semaphores.get(Address(mode, prefix, push.name, kept_by))
            if remote is not None:
                remote.change(machine.pushed, push, self.state.fresh_at)

    def unsubscribed(self, address: Address) -> None:
        remote = self.semaphores.get(address)
        if remote is not None:
            remote.state.introduction.sent = False
            if remote.active:
                remote.state.beat()  # its reply says which server keeps the semaphore
            self.settle(remote)

    def push_unavailable(self, error: Exception) -> None:
        self.state.no_push = True
        for remote in list(self.semaphores.values()):
            remote.state.introduction.sent = False
        if not self.identity.warned_of_no_push:
            self.identity.warned_of_no_push = True
            text = "no push messages come from %s (%s): waiters are served by heartbeats alone"
            place = self.state.node.place
            logger.warning(text, place, error, extra={"event": "no push", "place": place})

    # -- the connection

    def connected(self, link: Link) -> None:
        """There is a connection, so write what waits for it."""
        self.state.link = link
        self.identity.admitted = True
        for remote in list(self.semaphores.values()):
            remote.change(machine.reconnected)
        self.flush()

    def connection_lost(self, error: Exception) -> None:
        if self.state.link is None:
            return
        self.state.link = None
        self.lost = True
        self.stirred.set()
        if self.has_work():
            self.outage.begin(error)
        self._write_again()
        for remote in list(self.semaphores.values()):
            self.settle(remote)
            self.redirects.follow(remote)
        self._wake()  # who waits for the end of the work may have to reconnect for it

    def _write_again(self) -> None:
        """No reply will come to what is in flight, which may have arrived all the same."""
        in_flight = list(self._in_flight)
        self._in_flight.clear()
        for _, batch in reversed(in_flight):
            batch.write_again(arrived=True)

    def _drop(self, error: Exception) -> None:
        link = self.state.link
        if link is not None:
            self.connection_lost(error)
            link.abort()

    def give_up(self) -> None:
        """Return the commands without a reply to their semaphores, to fail there."""
        if self._in_flight:
            self._drop(TimeoutError("no answer came before it was closed"))

    def forget(self) -> Link | None:
        """The connection is closed on purpose. Returns it."""
        link, self.state.link, self.lost = self.state.link, None, False
        self.leaving = False
        for timer in (self._reply_timer, self._suspended):
            if timer is not None:
                timer.cancel()
        self._reply_timer = self._suspended = None
        self.outage.forget()
        self._in_flight.clear()
        self._ready.forget()
        for remote in list(self.semaphores.values()):
            machine.forget_in_flight(remote.state)
            self.settle(remote)
        return link

    # -- the end of the work

    def has_work(self) -> bool:
        """Whether anything is held, waited for, to be written or in flight."""
        return bool(self._in_flight) or any(r.active for r in self.semaphores.values())

    def _check_quiet(self) -> None:
        """Notify those that wait for the end of the work, if this is it."""
        if self.has_work():
            return
        self._wake()
        if self.leaving:
            self.stirred.set()

    def _wake(self) -> None:
        if self._quiet is not None:
            self._quiet.set_result(None)
            self._quiet = None

    def quiet(self) -> "asyncio.Future[None]":
        """Done when there is nothing to do, or the connection is lost.

        Several may wait for it, so no task may cancel it.
        """
        if self._quiet is None:
            self._quiet = self._loop.create_future()
        return self._quiet

    async def until_quiet(self, deadline: float) -> None:
        """Wait until there is nothing to do, or for *deadline* of the loop's clock."""
        while self.has_work() and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait([self.quiet()], timeout=left)
