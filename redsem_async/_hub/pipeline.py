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
from redsem_async._core.log import facts
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import AnyReply, Link, Node
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import AnyOperation
from redsem_async._protocol.pushes import Push

from .calls import (
    ReapCall,
    back_off_is_in_flight,
    back_off_is_unsent,
    drop_unwanted,
    next_call,
    next_change,
)
from .commands import (
    AbandonBatch,
    AcquireBatch,
    AnyBatch,
    HeartbeatBatch,
    RefreshBatch,
    ReleaseBatch,
)
from .endings import fail_not_waiting, fail_outlasted, forget_in_flight, look, reconnected
from .identity import HubIdentity
from .redirects import Redirects
from .server import LinkState, ServerOutage
from .state import MAX_BATCH, Changed, SemaphoreState

logger = logging.getLogger("redsem_async")

WINDOW = 3  # commands in flight. Further requests wait, and make larger batches
FAR = 0.0005  # seconds of round trip, for each of which one more command may be in flight
MAX_WINDOW = 8
FAR_BATCH = 32  # requests that a far server is sent at once, before others can join them


class Pipeline:
    """The commands in flight on the connection to one server, and those to be written next.

    *connect* has a connection made where there is none.

    Attributes:
        window: how many commands may be in flight. The longer the round trip, the more.
        batch_target: how many things to write make a command that need not wait for others to
            join.
        lone: whether what was written last was for one request alone. Such a client gets its next
            request written at once, rather than at the end of the turn of the loop.
    """

    def __init__(
        self,
        identity: HubIdentity,
        node: Node,
        redirects: Redirects,
        connect: Callable[[], None],
    ) -> None:
        self.identity: HubIdentity = identity
        self.changed: Changed = Changed(identity.loop, self.settle)
        self.semaphores: WeakValueDictionary[Address, SemaphoreState] = WeakValueDictionary()
        self._kinds: set[tuple[Mode, Clock, tuple[str, ...]]] = set()  # of these semaphores
        self.link_state: LinkState = LinkState(node)
        self.window: int = WINDOW
        self.batch_target: int = MAX_BATCH
        self.lone: bool = False
        self.outage: ServerOutage = ServerOutage(
            identity.loop, self.link_state, self._names, self._outage_lasts
        )
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
        self._suspended: asyncio.TimerHandle | None = None  # the server is busy
        self._reply_timer: asyncio.TimerHandle | None = None

    @property
    def hub_id(self) -> str:
        """The id of this process's hub."""
        return self.identity.id

    def add(self, semaphore: SemaphoreState) -> None:
        """*semaphore* is written here from now on."""
        address = semaphore.address
        self.semaphores[address] = semaphore
        self._kinds.add((address.mode, address.clock, address.rates))

    # -- for the semaphores

    def asked(self) -> None:
        """A task waits for what it has just asked for.

        It is written at the end of this turn of the loop, so that others may join it. But if the
        last command was for a lone task and has its reply, or if there is enough for a command, it
        is written now.
        """
        marks, in_flight = self.changed.marks, len(self._in_flight)
        alone = marks == 1 and self.lone and not in_flight
        if alone or (marks >= self.batch_target and in_flight < self.window):
            self.settle()

    def settle(self) -> None:
        """Do what is to be done for the semaphores that were changed: the one place."""
        changed = self.changed
        if changed.due is not None:
            changed.due.cancel()
        changed.due, changed.marks = None, 0
        for semaphore in changed:
            size, look_at = semaphore.todo()
            if look_at < semaphore.look_at or (
                look_at == math.inf and semaphore.timer is not None
            ):
                self._look_at(semaphore, look_at)
            if size and not semaphore.scheduled:
                semaphore.scheduled = True
                self._ready.append(semaphore)
        changed.clear()
        if self._ready:
            self._write()
        if self._quiet is not None or self.leaving:
            self._check_quiet()

    def _look_at(self, semaphore: SemaphoreState, at: float) -> None:
        """Look at the state of *semaphore* at that time, and not before. Never, if infinite."""
        if semaphore.timer is not None:
            semaphore.timer.cancel()
        semaphore.timer, semaphore.look_at = None, at
        if at < math.inf:
            semaphore.timer = self._loop.call_later(
                max(0.0, at - clock()), self._look, semaphore, at, context=Context()
            )

    def _look(self, semaphore: SemaphoreState, at: float) -> None:
        semaphore.timer, semaphore.look_at = None, math.inf
        look(semaphore, max(at, clock()))  # a loop's timers may be early
        semaphore.changed.add(semaphore)

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

    def _write(self) -> None:
        """Write what the semaphores want written, in turns, as far as the window goes."""
        if logger.isEnabledFor(logging.DEBUG) is not observers.debug:
            observers.follow_level()
        link = self.link_state.link
        if link is None:
            self.stirred.set()
            self._connect()
            return
        if self._suspended is not None or not link.writable:
            return
        now = clock()
        ready, in_flight = self._ready, self._in_flight
        room = self.window - len(in_flight)
        batches: list[AnyBatch] = []
        while ready and room > 0:
            semaphore = ready.popleft()
            most = 1 if ready else room
            taken = _next_commands(semaphore, now, most)
            if len(taken) < most:
                semaphore.scheduled = False
            else:
                ready.append(semaphore)
            room -= len(taken)
            batches += taken
        if not batches:
            return
        in_flight += batches
        self.lone = len(batches) == 1 and len(batches[0].items) <= 1
        self.active_at = now
        link.send(batches, now)
        if self._reply_timer is None:
            self._await_reply(now)

    def resume_writing(self) -> None:
        self._write()

    def _resume(self) -> None:
        self._suspended = None
        self._write()

    # -- the reply timeout

    def _await_reply(self, now: float) -> None:
        """Look again when the oldest command in flight should have its reply."""
        late_in = self._in_flight[0].sent_at + self.reply_timeout - now
        self._reply_timer = self._loop.call_later(
            max(0.0, late_in), self._check_reply, context=Context()
        )

    def _check_reply(self) -> None:
        self._reply_timer = None
        if not self._in_flight or self.link_state.link is None:
            return
        now = clock()
        if now - self._in_flight[0].sent_at >= self.reply_timeout - 0.001:
            self._drop(TimeoutError(f"no answer in {self.reply_timeout:.3g} s"))
        else:
            self._await_reply(now)

    # -- what the link says

    def reply_received(self, command: AnyOperation, reply: AnyReply | CommandError) -> None:
        batch = self._in_flight.popleft()
        assert batch is command
        now, semaphore = clock(), batch.state
        link_state, round_trip = self.link_state, now - batch.sent_at
        if round_trip < link_state.round_trip:
            self._fit_window(round_trip)
        route = semaphore.route
        if isinstance(reply, CommandError):
            batch.settle_error(self._error_received(semaphore, reply), now)
        else:
            logged = self.outage.logged_since is not None
            if logged or link_state.error is not None or route.redirect is not None:
                self._carried_out(semaphore)
            batch.apply(reply, now)
        if self.changed.due is not None:  # behind the callers, so that they have stepped by then
            self.changed.due.cancel()
            self.changed.due = None
        self.changed.add(semaphore)
        if route.redirect is not None:
            self.redirects.follow(semaphore)

    def _fit_window(self, round_trip: float) -> None:
        """The shortest round trip of this connection is *round_trip* seconds."""
        self.link_state.round_trip = round_trip
        self.window = min(WINDOW + int(round_trip / FAR), MAX_WINDOW)
        self.batch_target = FAR_BATCH if round_trip >= FAR else MAX_BATCH

    def _error_received(self, semaphore: SemaphoreState, error: CommandError) -> CommandError:
        match error.kind:
            case ErrorKind.BUSY | ErrorKind.READ_ONLY:
                self.unavailable(error.error)
                if self._suspended is None:
                    self._suspended = self._loop.call_later(
                        next(self.outage.suspensions), self._resume, context=Context()
                    )
            case ErrorKind.RETRY_LATER:
                self.redirects.suspend(semaphore, error.error)
            case ErrorKind.MOVED | ErrorKind.ASK:
                return self.redirects.redirected(semaphore, error)
            case ErrorKind.RETRY_NOW:
                pass
            case _:
                self._carried_out(semaphore)
        return error

    def unavailable(self, error: Exception) -> None:
        """The server cannot be asked now, so those that do not wait are told."""
        self.outage.begin(error)
        for semaphore in list(self.semaphores.values()):
            fail_not_waiting(semaphore)

    def _outage_lasts(self, since: float) -> None:
        for semaphore in list(self.semaphores.values()):
            fail_outlasted(semaphore, since)

    def _names(self) -> set[str]:
        return {address.name for address in self.semaphores}

    def _carried_out(self, semaphore: SemaphoreState) -> None:
        """The server did its part."""
        self.redirects.carried_out(semaphore)
        self.outage.end()

    def push_received(self, prefix: str, push: Push) -> None:
        link = self.link_state.link
        fresh_at = None if link is None else link.fresh_at
        for mode, kept_by, rates in self._kinds:
            semaphore = self.semaphores.get(Address(mode, prefix, push.name, kept_by, rates))
            if semaphore is not None:
                semaphore.pushed(push, fresh_at)
                self.changed.add(semaphore)

    def unsubscribed(self, address: Address) -> None:
        semaphore = self.semaphores.get(address)
        if semaphore is not None:
            semaphore.introduction.sent = False
            if semaphore.active:
                semaphore.beat()  # its reply says which server keeps the semaphore

    def push_unavailable(self, error: Exception) -> None:
        self.link_state.no_push = True
        for semaphore in list(self.semaphores.values()):
            semaphore.introduction.sent = False
        if not self.identity.warned_of_no_push:
            self.identity.warned_of_no_push = True
            text = "no push messages come from %s (%s): waiters are served by heartbeats alone"
            place = self.link_state.node.place
            logger.warning(text, place, error, extra=facts("no push", place=place))

    # -- the connection

    def connected(self, link: Link) -> None:
        """There is a connection, so write what waits for it."""
        self.link_state.link = link
        self.identity.admitted = True
        for semaphore in list(self.semaphores.values()):
            reconnected(semaphore)

    def connection_lost(self, error: Exception) -> None:
        if self.link_state.link is None:
            return
        self.link_state.link = None
        self.lost = True
        self.stirred.set()
        if self.has_work():
            self.outage.begin(error)
        semaphores = list(self.semaphores.values())  # only what is in flight may keep them
        self._return_unanswered()
        for semaphore in semaphores:
            self.changed.add(semaphore)
            self.redirects.follow(semaphore)
        self._wake()  # who waits for the end of the work may have to reconnect for it

    def _return_unanswered(self) -> None:
        """No reply will come to what is in flight, which may have arrived all the same."""
        in_flight = list(self._in_flight)
        self._in_flight.clear()
        for batch in reversed(in_flight):
            batch.write_again(arrived=True)

    def _drop(self, error: Exception) -> None:
        link = self.link_state.link
        if link is not None:
            self.connection_lost(error)
            link.abort()

    def give_up(self) -> None:
        """Return the commands without a reply to their semaphores, to fail there."""
        if self._in_flight:
            self._drop(TimeoutError("no answer came before it was closed"))

    def forget(self) -> Link | None:
        """The connection is closed on purpose. Returns it."""
        link, self.link_state.link, self.lost = self.link_state.link, None, False
        self.leaving = False
        for timer in (self._reply_timer, self._suspended):
            if timer is not None:
                timer.cancel()
        self._reply_timer = self._suspended = None
        self.outage.forget()
        self._in_flight.clear()
        self._ready.forget()
        for semaphore in list(self.semaphores.values()):
            forget_in_flight(semaphore)
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


def _next_commands(state: SemaphoreState, now: float, most: int) -> list[AnyBatch]:
    """The next commands of a semaphore. Fewer than *most*, if no other may be written now.

    Refreshes come first, then back-offs of permits, releases, abandons, calls, a heartbeat and
    acquires.
    """
    taken: list[AnyBatch] = []
    batch: AnyBatch | None
    if state.reaps:
        state.reaps = False
        ReapCall().ask(state)
    while len(taken) < most:
        if state.calls:
            drop_unwanted(state)
        if state.refreshes:
            batch = RefreshBatch.take(state)
        elif state.calls and back_off_is_unsent(state):  # and a release would serve a waiter
            change = next_change(state)
            batch = None if change is None else change.take()
        elif state.releases:  # and one that is in flight may be refused, and written again
            waits = state.calls and back_off_is_in_flight(state)
            batch = None if waits else ReleaseBatch.take(state, now)
        elif state.undo:
            batch = AbandonBatch.take(state)
        elif state.calls and (call := next_call(state)) is not None:
            batch = call.take()
        elif state.heartbeats.due:
            batch = HeartbeatBatch.take(state)
        else:
            batch = AcquireBatch.take(state) if state.new else None
        if batch is None:
            break
        taken.append(batch)
    return taken
