"""One hub for each client and event loop: the only owner of input and output.

It collects what its lanes want written into few writes, keeps one link open for as long as there
is something to say, and opens a new one when that breaks. Everything but opening and closing
happens in callbacks of the event loop, so no caller's cancellation can interrupt a command.
"""

import asyncio
import logging
import math
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from weakref import WeakSet, WeakValueDictionary

from ._backend import Backend, Letter, Link, Refused
from ._backoff import delays
from ._batches import Batch
from ._clock import now as clock
from ._config import Clock
from ._errors import BackendError, BackendUnavailable, SemaphoreClosed
from ._fair import FairLane
from ._keys import Address, Mode, new_hub_id
from ._lane import MOST_ACQUIRES, Lane
from ._lease import patience
from ._protocol import Answered, Fault, Introduction, Message, Trouble
from ._wire import who_text
from ._zset import ZsetLane

logger = logging.getLogger("redsem_async")

WINDOW = 3  # letters on their way at a time; more wait and make larger batches
FAR = 0.0005  # seconds of distance, for each of which one more may be on its way
LARGEST_WINDOW = 8
ENOUGH = 32  # requests that a far server is sent at once, before others can join them
LONGEST_PATIENCE = 3.0  # seconds without an answer, before a connection counts as dead
IDLE = 5.0  # seconds for which an idle hub keeps its link
LONGEST_HOLD = 0.2  # seconds between letters to a server that answers, but that it is busy
CONNECT_TIME = 5.0  # seconds for one attempt to connect
OUTAGE_CHECK = 0.1  # seconds between looks at whose patience an outage outlasts
DRAIN = 10.0  # seconds that a cancelled hub gives the tasks that were cancelled with it
LAST_WORDS = 1.0  # seconds for what is left to say at the end


class Hub:
    """Talks to one backend on one event loop, for all semaphores of a client."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        self.backend = backend
        self.loop = loop
        self.hub_id = new_hub_id()
        self.usable = True
        self.closing = False
        self._closings = 0  # calls of aclose that have not ended
        self.deaf = False
        self.enough = MOST_ACQUIRES
        self.trouble: Exception | None = None
        self._trouble_since = 0.0
        self._lanes: WeakValueDictionary[Address, Lane] = WeakValueDictionary()
        self._ready: deque[Lane] = deque()
        self._on_way: deque[Batch] = deque()
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._keeping = False  # the keeper has begun, and will clean up
        self._stirred = asyncio.Event()
        self._hurried = asyncio.Event()
        self._quiet: asyncio.Future[None] | None = None
        self._warned = False
        self._flush_due = False
        self._lone = False
        self._held_back: asyncio.TimerHandle | None = None
        self._outage_timer: asyncio.TimerHandle | None = None
        self._alive_timer: asyncio.TimerHandle | None = None
        self._window = WINDOW
        self._patience = LONGEST_PATIENCE
        self._delays: Iterator[float] = delays(random.random)
        self._holds: Iterator[float] = delays(random.random, longest=LONGEST_HOLD)
        self._numbers = 0
        self._tags = 0
        self._active_at = 0.0
        self._trip = math.inf  # seconds, the shortest of this link
        _HUBS.add(self)

    # -- for the lanes

    def lane(self, address: Address, label: str | None) -> Lane:
        """The lane of a semaphore, made when first asked for."""
        lane = self._lanes.get(address)
        if lane is None:
            kind = FairLane if address.mode == "fair" else ZsetLane
            lane = self._lanes[address] = kind(self, address, label)
        return lane

    def hurry(self) -> None:
        """Somebody does not wait: find out at once whether there is anybody to ask."""
        self._hurried.set()

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

    def introduction(self, label: str | None) -> Introduction:
        """Who we are, for ``status`` to show."""
        who = who_text(
            label=label, host=socket.gethostname(), pid=os.getpid(), started=round(_STARTED, 3)
        )
        return Introduction(who, self.deaf)

    def unavailable(self, name: str, cause: Exception | None) -> BackendUnavailable:
        """An error that says what could not be reached, and why."""
        reason = f": {cause}" if cause and str(cause) else ""
        error = BackendUnavailable(name, f"{self.backend.place} could not be asked{reason}")
        error.__cause__ = cause
        return error

    def enlist(self, lane: Lane, *, asked: bool) -> None:
        """*lane* has something to write, *asked* for by a task.

        What a task asks for waits for the end of this turn of the loop, so that others may join
        it. A lone task's does not: where the last letter was a lone one, and was answered.
        """
        self._ready.append(lane)
        if self._link is None:
            self._start()
        elif asked and self._lone and not (self._on_way or self._flush_due):
            self._flush()
        else:
            self._flush_soon()

    def fill(self) -> None:
        """There is enough for a letter before the turn of the loop has ended."""
        if self._flush_due and len(self._on_way) < self._window:
            self._flush()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self._flush)

    # -- writing

    def _flush(self) -> None:
        """Write what the lanes want written, in turns, as far as the window goes."""
        self._flush_due = False
        link = self._link
        if link is None or self._held_back is not None or not link.writable:
            return
        room = self._window - len(self._on_way)
        batches: list[Batch] = []
        while self._ready and len(batches) < room:
            lane = self._ready.popleft()
            batch = lane.take()
            if batch is not None:
                batches.append(batch)
            lane.ready = lane.eager
            if lane.ready:
                self._ready.append(lane)
        if not batches:
            return
        self._lone = len(batches) == 1 and batches[0].lone
        now = self._active_at = clock()
        self._on_way.extend(batches)
        link.send(batches, now)
        if self._alive_timer is None:
            self._watch()

    def _come_nearer(self, trip: float) -> None:
        """At a distance more letters may be on their way, and smaller ones: nobody waits twice."""
        self._trip = trip
        self._window = min(WINDOW + int(trip / FAR), LARGEST_WINDOW)
        self.enough = ENOUGH if trip >= FAR else MOST_ACQUIRES

    def _watch(self) -> None:
        """Look after the longest that the oldest letter's answer may take."""
        overdue_in = self._on_way[0].sent_at + self._patience - clock()
        self._alive_timer = self.loop.call_later(max(0.0, overdue_in), self._check_alive)

    def expect_lease(self, lease: float) -> None:
        """Permits of so short a lease are used: silence is noticed in time for them."""
        if patience(lease) < self._patience:
            self._patience = patience(lease)
            if self._alive_timer is not None:
                self._alive_timer.cancel()
                self._alive_timer = None
                if self._on_way:
                    self._watch()

    def _check_alive(self) -> None:
        self._alive_timer = None
        if not self._on_way or self._link is None:
            return
        if clock() - self._on_way[0].sent_at >= self._patience - 0.001:
            self._drop(TimeoutError("no answer came"))
        else:
            self._watch()

    def writable_again(self) -> None:
        self._flush()

    # -- what the link says

    def answered(self, letter: Letter, answer: Answered | Fault) -> None:
        batch = self._on_way.popleft()
        assert batch is letter
        trip = clock() - letter.sent_at
        if trip < self._trip:
            self._come_nearer(trip)
        if isinstance(answer, Fault) and answer.trouble in (Trouble.BUSY, Trouble.MOVED):
            self._in_trouble(answer.error, hurry=True)
            if self._held_back is None:
                delay = next(self._holds)
                self._held_back = self.loop.call_later(delay, self._go_on)
        elif not (isinstance(answer, Fault) and answer.trouble is Trouble.AGAIN):
            self._out_of_trouble()
        batch.settle(answer)
        if self._ready:
            self._flush_soon()
        if self._quiet is not None and not self._quiet.done() and not self._has_work():
            self._quiet.set_result(None)

    def told(self, prefix: str, message: Message) -> None:
        fresh_at = self._link.fresh_at if self._link else None
        for mode, kept_by in _KINDS:
            lane = self._lanes.get(Address(mode, prefix, message.name, kept_by))
            if lane is not None:
                lane.told(message, fresh_at)

    def deafened(self, error: Exception) -> None:
        self.deaf = True
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s lets us hear no messages (%s): waiters are served by heartbeats alone",
                self.backend.place,
                error,
            )
        for lane in self._lanes.values():
            lane.introduced = False

    def link_lost(self, error: Exception) -> None:
        if self._link is None:
            return
        self._link = None
        self._stirred.set()
        if self._has_work():
            self._in_trouble(error)
        unanswered, self._on_way = self._on_way, deque()
        for batch in reversed(unanswered):
            batch.write_again(arrived=True)

    def _drop(self, error: Exception) -> None:
        link = self._link
        if link is not None:
            self.link_lost(error)
            link.abort()

    # -- trouble

    def _in_trouble(self, error: Exception, *, hurry: bool = False) -> None:
        if self.trouble is None:
            self._trouble_since = clock()
            self._outage_timer = self.loop.call_later(OUTAGE_CHECK, self._check_outage)
        self.trouble = error
        if hurry:
            for lane in list(self._lanes.values()):
                lane.fail_hurried(self._unavailable_for(lane))

    def _out_of_trouble(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            self._delays = delays(random.random)
            self._holds = delays(random.random, longest=LONGEST_HOLD)
            if self._outage_timer is not None:
                self._outage_timer.cancel()
                self._outage_timer = None

    def _unavailable_for(self, lane: Lane) -> Callable[[], BackendUnavailable]:
        return lambda: self.unavailable(lane.address.name, self.trouble)

    def _check_outage(self) -> None:
        for lane in list(self._lanes.values()):
            lane.fail_outlasted(self._trouble_since, self._unavailable_for(lane))
        self._outage_timer = self.loop.call_later(OUTAGE_CHECK, self._check_outage)

    def _go_on(self) -> None:
        self._held_back = None
        self._flush()

    # -- the keeper

    def _start(self) -> None:
        self._stirred.set()
        if self._keeper is None:
            self._keeper = self.loop.create_task(self._keep(), name="redsem-hub")
            _KEEPERS.add(self._keeper)

    def _has_work(self) -> bool:
        return bool(self._on_way) or any(lane.active for lane in self._lanes.values())

    async def _keep(self) -> None:
        """Hold a link open for as long as there is work, and a while longer."""
        self._keeping = True
        try:
            while True:
                self._stirred.clear()
                if self._link is None:
                    await self._connect()
                if self._link is None and not self._has_work():
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE):
                        await self._stirred.wait()
                if not self._has_work() and clock() - self._active_at >= IDLE:
                    break
        except asyncio.CancelledError:
            if not self.closing:
                await self._drain()
            raise
        finally:
            await self._end()

    async def _connect(self) -> None:
        while self._has_work():
            self.deaf = False
            self._trip = math.inf
            try:
                async with asyncio.timeout(CONNECT_TIME):
                    self._link = await self.backend.connect(self)
                break
            except Refused as refusal:
                self._turned_away(refusal.__cause__ or refusal)
            except Exception as error:  # noqa: BLE001 - the network's, or of the user's making
                self._in_trouble(error, hurry=True)
            self._hurried.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(next(self._delays)):
                    await self._hurried.wait()
        if self._link is not None:
            for lane in list(self._lanes.values()):
                lane.reconnected()
            self._flush()

    def _turned_away(self, error: BaseException) -> None:
        for lane in list(self._lanes.values()):
            name = lane.address.name

            def refused(name: str = name) -> BackendError:
                refusal = BackendError(name, f"{self.backend.place} turned us away: {error}")
                refusal.__cause__ = error
                return refusal

            lane.fail_all(refused)

    async def _drain(self) -> None:
        """See through what the tasks still say that were cancelled together with this one.

        ``asyncio.run`` cancels every task at its end: those that hold a permit release it now,
        and may take a while to come to that. When none of them is left, the rest is released.
        """
        deadline = self.loop.time() + DRAIN
        with suppress(asyncio.CancelledError):
            while self._has_work() and (left := deadline - self.loop.time()) > 0:
                others = asyncio.all_tasks() - set(_KEEPERS)
                if not others:
                    break
                self._quiet = self.loop.create_future()
                pause = min(left, self._patience)
                await asyncio.wait(
                    [*others, self._quiet], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                for lane in self._lanes.values():
                    for claim in lane.held():
                        _ = lane.refresh(claim)
            self._release_all()
            await self._say_last_words()

    def _release_all(self) -> None:
        for lane in list(self._lanes.values()):
            for claim in lane.held():
                lane.close(claim)

    async def _say_last_words(self) -> None:
        deadline = self.loop.time() + LAST_WORDS
        while self._has_work() and (left := deadline - self.loop.time()) > 0:
            if self._link is None:
                with suppress(Exception):
                    async with asyncio.timeout(left):
                        await self._connect()
            self._quiet = self.loop.create_future()
            await asyncio.wait([self._quiet], timeout=left)

    async def _end(self) -> None:
        """Close the link. Whoever comes back finds another incarnation."""
        self._keeper, self._keeping = None, False
        link, self._link = self._link, None
        for timer in (self._alive_timer, self._held_back, self._outage_timer):
            if timer is not None:
                timer.cancel()
        self._alive_timer = self._held_back = self._outage_timer = None
        self.trouble = None
        self._on_way.clear()
        for lane in self._ready:
            lane.ready = False
        self._ready.clear()
        for lane in list(self._lanes.values()):
            lane.cut_off()
        self.hub_id = new_hub_id()
        if link is not None:
            await link.close()

    async def aclose(self, drain: float) -> None:
        """End waiting, give holders *drain* seconds, release what they still hold, and close."""
        self._closings += 1
        self.closing = True
        try:
            for lane in list(self._lanes.values()):
                name = lane.address.name
                lane.fail_waiting(partial(SemaphoreClosed, name))
            if drain > 0:
                await self._until_quiet(drain)
            for lane in list(self._lanes.values()):
                for claim in lane.held():
                    lane.close(claim)
            await self._until_quiet(LAST_WORDS)
            if self._on_way:
                # What nobody answered goes back to its lane, and fails there.
                self._drop(TimeoutError("no answer came before it was closed"))
            for lane in list(self._lanes.values()):
                lane.fail_all(partial(SemaphoreClosed, lane.address.name))
            if self._keeper is not None:
                keeper, self._keeper = self._keeper, None
                begun = self._keeping
                keeper.cancel()
                await asyncio.wait([keeper])
                if not begun:
                    await self._end()
        finally:
            self._closings -= 1
            self.closing = self._closings > 0

    async def _until_quiet(self, most: float) -> None:
        deadline = self.loop.time() + most
        while self._has_work() and (left := deadline - self.loop.time()) > 0:
            self._quiet = self.loop.create_future()
            await asyncio.wait([self._quiet], timeout=left)

    def orphan(self) -> None:
        """We are a forked child: the link and all permits are the parent's."""
        self.usable = False
        for lane in list(self._lanes.values()):
            for claim in lane.held():
                claim.on_lost = None
                claim.lose("the process that held it was forked")
        _ORPHANED.append(self)


_STARTED = time.time()
_KINDS: tuple[tuple[Mode, Clock], ...] = tuple(
    (mode, kept_by) for mode in ("fair", "zset") for kept_by in ("server", "local")
)
_HUBS: WeakSet[Hub] = WeakSet()
_KEEPERS: WeakSet["asyncio.Task[None]"] = WeakSet()
_BY_CLIENT: WeakValueDictionary[tuple[int, int], Hub] = WeakValueDictionary()
_ORPHANED: list[Hub] = []  # kept, so that nothing they inherited is closed


def _after_fork() -> None:
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
