"""Reads semaphores for all open pages, and more slowly where a dashboard is served by itself.

A tick reads a bounded number of names. It reads those that a page shows, and of the others as many
as the budget allows, in turns. The load on Redis depends neither on the number of semaphores nor
on the number of pages.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core.errors import (
    BackendUnavailable,
    ModeMismatch,
    SemaphoreError,
    unreachable,
)
from redsem_async._core.log import facts
from redsem_async._protocol.views import Client, SemaphoreStatus
from redsem_async._tools.discovery import (
    LISTED_KEYS,
    Process,
    SemaphoreInfo,
    find,
    process_of,
)
from redsem_async._tools.stored import READ_ERRORS, scanned_names

from ._history import EVENTS, KEPT, SLOT, Happening, History
from ._reading import Reading

T = TypeVar("T")

logger = logging.getLogger("redsem_async.dashboard")

BUDGET = 150  # names read in one tick
SHOWN = 100  # of them those that lists show, at most
DETAILS = 20  # names read in full in one tick
PAGE = 50  # names read before the pages are notified
SCANS = 20  # SCAN commands in one tick
SCAN_AGAIN = 2.0  # seconds after a SCAN of all keys until the next begins
BREATH = 0.02  # seconds between two ticks while not all names were read once
AT_ONCE = 4  # connections of the client in use at the same time
ENTRIES = 100  # holders, waiters and keys that are read of a name that a page shows
INFO_AGE = 15.0  # seconds until mode and clients of a name are read again
SHORT_AGE = 2.0  # the same of an unused name, which may be gone, or one with waiters that may die
READ_TIMEOUT = 4.0  # seconds for one page of names
OLD = 10.0  # seconds without a tick after which readings are not shown any more
MAX_NAMES = 100_000  # names that are remembered
HUES = 8  # colours of processes
FLUSHES = ("flushall", "flushdb", "swapdb")  # commands after which other data may be there
HISTORIES = 500  # names whose last minutes are kept


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Redis could not be read.

    Attributes:
        since: when the first attempt to read it began, as a Unix time.
        text: the error.
        read_at: when Redis was last read, as a Unix time. None for never.
    """

    since: float
    text: str
    read_at: float | None


class Detail(NamedTuple):
    """What a page shows in full.

    Attributes:
        name: of the semaphore.
        keys_after: only keys after this one are listed. None for the first ones.
        keys_begin: only keys that begin with this text are listed.
    """

    name: str
    keys_after: str | None = None
    keys_begin: str = ""


@dataclass(eq=False, slots=True)
class Watch:
    """What one open page shows.

    Attributes:
        rows: names whose numbers it shows, which it changes as it likes.
        detail: what it shows in full.
        changed: set when there is something new to show.
        live: whether it is displayed. Otherwise one tick in `SLOT` suffices.
    """

    rows: Iterable[str] = ()
    detail: Detail | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    live: bool = True


@dataclass(slots=True)
class _Known:
    """A semaphore object for a name, and what it was made from."""

    info: SemaphoreInfo
    semaphore: AnySemaphore
    at: float
    may_change: bool = False


class Reader:
    """The shared reader of one dashboard in one event loop.

    Attributes:
        readings: the numbers of every name that is known, by name.
        details: what pages show in full, the longest unread first. None for a name that is not
            in use.
        views: what was made of these for pages, until the next reading.
        histories: the last minutes of the names that were in use then, `HISTORIES` at most.
        outages: when Redis went away and came back.
        hues: the colour of each process, as a number, so that it is the same in every tab.
        outage: while Redis cannot be read.
        refusal: why the names cannot be listed, if Redis refuses it.
        round: seconds from the last reading of a name that no page shows to the next.
        complete: whether all names were read once.
    """

    def __init__(self, redis: Any, prefix: str, interval: float) -> None:
        self.readings: dict[str, Reading] = {}
        self.details: dict[Detail, Reading | None] = {}
        self.views: dict[object, Any] = {}
        self.histories: dict[str, History] = {}
        self.outages: deque[Happening] = deque(maxlen=EVENTS)
        self.hues: dict[Process, int] = {}
        self.outage: Unreachable | None = None
        self.refusal: str | None = None
        self.round: float = 0.0
        self.complete: bool = False
        self._redis = redis
        self._prefix = prefix
        self._interval = interval
        self._known: dict[str, _Known] = {}
        self._seen: set[str] = set()  # names of the SCAN that is under way
        self._server: str | None = None
        self._scan: AsyncGenerator[list[str]] | None = None
        self._scanned: float | None = None  # when a SCAN went through
        self._read_at: float | None = None  # when a tick went through, as a Unix time
        self._since = 0.0  # the same for the first one of those without a gap
        self._turns: OrderedDict[str, None] = (
            OrderedDict()
        )  # names whose turn has not come in this round
        self._round_began = self._ticked = time.monotonic()
        self._watches: set[Watch] = set()
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()  # cancelled, and not done yet
        self._due = asyncio.Event()

    # -- pages

    @contextlib.asynccontextmanager
    async def watching(self, watch: Watch) -> AsyncGenerator[None]:
        """Read what *watch* shows, for the block."""
        self._watches.add(watch)
        self._due.set()  # a new page does not wait for the next tick
        if self._task is None:
            # Not in the context of the request that comes first.
            self._task = Context().run(asyncio.create_task, self._run())
        elif self.complete and watch.detail in {None, *self.details}:
            watch.changed.set()
        try:
            yield
        finally:
            self._watches.discard(watch)
            if not self._watches:
                self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            _ = self._task.cancel()
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)
            self._task = None

    def read_soon(self) -> None:
        """Begin the next tick now, because something was changed."""
        self._due.set()

    # -- reading

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._ending:
            await asyncio.wait(self._ending)
        await self._end_scan()  # one that was cancelled has not seen all names
        if time.monotonic() - self._ticked > OLD:
            self._forget()
        while True:
            self._due.clear()
            try:
                await self.tick()
            except Exception:  # the pages continue, and show it
                logger.exception(
                    "reading for the dashboard failed", extra=facts("dashboard failed")
                )
                self._fail("the dashboard failed: its log has the error", time.time())
            if task.cancelling():  # redis-py may have swallowed the cancellation
                return
            self._ticked = time.monotonic()
            self._publish()
            pause = BREATH
            if self.complete or self.outage:
                pause = self._interval if any(w.live for w in self._watches) else SLOT
            # Not `wait_for`, as that of Python 3.11 may swallow the cancellation that ends this.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._due.wait()

    async def tick(self) -> None:
        """Read what the pages show, then as many other names as the budget allows."""
        began = time.time()
        if self.outage or self._read_at is None or began - self._read_at > OLD:
            self._since = began
        try:
            self._server = await self._in_time(self._data_id())
            await self._in_time(self._read_details())
            await self._in_time(self._find_names())
            shown = self._shown()
            await self._read_rows(shown[:SHOWN])
            left = BUDGET - min(len(shown), SHOWN)
            await self._read_rows(self._take_turns(left, set(shown)))
            self._read_at = time.time()
            if self.outage:
                self.outages.append(Happening(self._read_at, "good", "Redis answers again."))
            self.outage = None
        except (BackendUnavailable, TimeoutError, *READ_ERRORS) as error:
            # An error of a semaphore names it, and is shown at all of them.
            text = error.detail if isinstance(error, BackendUnavailable) else str(error)
            self._fail(unreachable(error) or " ".join(text.split()) or "no reply", began)
            await self._end_scan()

    def _fail(self, text: str, began: float) -> None:
        """A tick that *began* then could not read Redis."""
        text = text.rstrip(".")
        if not self.outage:
            self.outages.append(Happening(began, "bad", f"Redis became unreachable ({text})."))
        since = self.outage.since if self.outage else began
        self.outage = Unreachable(since, text, self._read_at)

    async def _data_id(self) -> str | None:
        """What differs after a restart, and after a flush. None if Redis does not tell."""
        try:
            info: Mapping[str, Any] = await self._redis.info("server")
            calls: Mapping[str, Any] = await self._redis.info("commandstats")
        except READ_ERRORS as error:
            if not _refused(error):
                raise
            return None
        flushes = [calls.get(f"cmdstat_{flush}", {}).get("calls", 0) for flush in FLUSHES]
        return f"{info['run_id']} {flushes}" if "run_id" in info else None

    async def _in_time(self, work: Awaitable[T]) -> T:
        async with asyncio.timeout(READ_TIMEOUT):
            return await work

    def _shown(self) -> list[str]:
        """The names that lists show, the longest unread first."""
        names = {name for watch in self._watches for name in watch.rows if name in self.readings}
        return sorted(names, key=lambda name: self.readings[name].at)

    async def _read_details(self) -> None:
        wanted = {watch.detail for watch in self._watches if watch.detail is not None}
        for gone in self.details.keys() - wanted:
            del self.details[gone]
        turns = [*(wanted - self.details.keys()), *self.details][:DETAILS]
        for detail in turns:
            self._known.pop(detail.name, None)  # its clients are shown, so read them every time
            reading = await self.read(detail.name, ENTRIES, detail)
            if reading is None:
                self._note_unused(detail.name)
            else:
                reading = self._note(reading, opened=True)
            self.details.pop(detail, None)
            self.details[detail] = reading
        if turns:
            self._publish()

    async def _read_rows(self, names: list[str]) -> None:
        for start in range(0, len(names), PAGE):
            page = names[start : start + PAGE]
            found = await self._in_time(self.read_all(page))
            for name, reading in zip(page, found, strict=True):
                if reading is None:
                    self._note_unused(name)
                else:
                    _ = self._note(reading)
            if not self.complete:
                self._publish()

    def _note(self, reading: Reading, *, opened: bool = False) -> Reading:
        """Add *reading* to the history, and return it with what Redis has forgotten."""
        name, status = reading.info.name, reading.status
        history = self.histories.get(name)
        if history is None:
            full = len(self.histories) >= HISTORIES
            if opened or not (full or status is None or _is_idle(status)):
                if full:
                    del self.histories[next(iter(self.histories))]
                history = self.histories[name] = History()
        if history is not None:
            history.add(reading, time.time(), self._since, self._server)
            reading = replace(reading, lost=history.lost)
        self.readings[name] = reading
        return reading

    def hue_of(self, client: Client) -> int:
        """The colour of a process. The next one for a new process."""
        if len(self.hues) > MAX_NAMES:
            self.hues.clear()
        return self.hues.setdefault(process_of(client), len(self.hues) % HUES)

    def _note_unused(self, name: str) -> None:
        """*name* is not in use. It stays in the list while something of it is lost."""
        _ = self.readings.pop(name, None)
        if (history := self.histories.get(name)) is not None:
            history.note_unused(time.time(), self._server)
            if history.lost is not None:
                status = SemaphoreStatus(name, 0, 0, 0, 0, (), ())
                unused = Reading(SemaphoreInfo(name), status, "", time.monotonic(), history.lost)
                self.readings[name] = unused

    async def read_all(self, names: list[str]) -> list[Reading | None]:
        """The numbers of *names*, and of each the first holder and waiter."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def know(name: str) -> None:
            async with gate:
                with contextlib.suppress(SemaphoreError, ValueError):  # `read` says it
                    await self._know(name)

        async def read(name: str) -> Reading | None:
            await know(name)
            return await self.read(name, 1)

        # All of them end before this does, also if one fails.
        found = await asyncio.gather(*map(read, names), return_exceptions=True)
        readings: list[Reading | None] = []
        for one in found:
            if isinstance(one, BaseException):
                raise one
            readings.append(one)
        return readings

    async def read(self, name: str, entries: int, of: Detail | None = None) -> Reading | None:
        """The status of *name*, with the keys *of* a page. None if it is not in use.

        Raises:
            BackendUnavailable, RedisError, OSError: Redis cannot be read.
        """
        try:
            try:
                return await self._read(name, entries, of)
            except ModeMismatch:  # another class uses the name now
                self._known.pop(name, None)
                return await self._read(name, entries, of)
        except BackendUnavailable:
            raise
        except (SemaphoreError, ValueError) as error:  # what is stored may be anything
            return Reading(SemaphoreInfo(name), None, str(error).rstrip("."), time.monotonic())

    async def _read(self, name: str, entries: int, of: Detail | None) -> Reading | None:
        known = await self._know(name)
        if known is None:
            return None
        which: dict[str, Any] = {"max_entries": entries}
        if known.info.keyed:
            if of is None:
                which["max_entries"] = LISTED_KEYS
            else:
                which |= {"keys_after": of.keys_after, "keys_begin": of.keys_begin}
        status = await known.semaphore.status(**which)
        known.may_change = status.waiting > 0 or _is_idle(status)
        return Reading(known.info, status, "", time.monotonic())

    async def _know(self, name: str) -> _Known | None:
        known = self._known.get(name)
        if known is not None:
            age = time.monotonic() - known.at
            if age < (SHORT_AGE if known.may_change else INFO_AGE):
                return known
        info = await find(self._redis, self._prefix, name)
        if info is None:
            self._known.pop(name, None)
            return None
        semaphore = info.semaphore(self._redis, self._prefix, label="dashboard")
        known = self._known[name] = _Known(info, semaphore, time.monotonic())
        return known

    # -- names

    async def _find_names(self) -> None:
        """Continue with SCAN, by a bounded number of commands."""
        if self._scan is None:
            if self._scanned is not None and time.monotonic() - self._scanned < SCAN_AGAIN:
                return
            self._scan, self._seen = scanned_names(self._redis, self._prefix), set()
        for _ in range(SCANS):
            try:
                some = await anext(self._scan)
            except StopAsyncIteration:
                self._scan, self._scanned, self.refusal = None, time.monotonic(), None
                self._forget_all_but(self._seen)
                return
            except READ_ERRORS as error:
                if not _refused(error):
                    raise
                self._scan, self._scanned, self.refusal = None, time.monotonic(), str(error)
                return
            new = set(some) - self._seen
            self._seen |= new
            for name in sorted(new - self.readings.keys()):
                if len(self.readings) + len(self._turns) < MAX_NAMES:
                    self._turns[name] = None
                    self._turns.move_to_end(name, last=False)

    def _forget(self) -> None:
        """Start over, because what was read long ago is no answer."""
        self.readings.clear()
        self.details.clear()
        self._known.clear()
        self._turns.clear()
        self._scanned, self.complete = None, False

    def _forget_all_but(self, names: set[str]) -> None:
        known = self.readings.keys() | self.histories.keys()
        for gone in known - names - {detail.name for detail in self.details}:
            self._note_unused(gone)
        oldest = time.time() - KEPT
        ended = [n for n, h in self.histories.items() if not h.points or h.points[-1].at < oldest]
        for name in ended:
            del self.histories[name]
        self.forget_unused()

    def forget_unused(self) -> None:
        """Drop what is known of names that were not read recently."""
        oldest = time.monotonic() - 2 * INFO_AGE
        self._known = {name: known for name, known in self._known.items() if known.at >= oldest}

    async def _end_scan(self) -> None:
        if self._scan is not None:
            await self._scan.aclose()
            self._scan = None

    def _take_turns(self, count: int, shown: set[str]) -> list[str]:
        """The names whose turn it is."""
        if not self._turns:
            now = time.monotonic()
            self.round = now - self._round_began
            self._round_began = now
            self._turns = OrderedDict.fromkeys(sorted(self.readings))
            self.complete = self.complete or self._scanned is not None
        turn: list[str] = []
        while self._turns and len(turn) < count:
            name, _ = self._turns.popitem(last=False)
            if name not in shown or name not in self.readings:
                turn.append(name)
        return turn

    def _publish(self) -> None:
        self.views.clear()
        for watch in self._watches:
            watch.changed.set()


def _is_idle(status: SemaphoreStatus) -> bool:
    changed = status.set_limit is not None or status.back_off is not None
    return not (status.held or status.waiting or changed)


def _refused(error: Exception) -> bool:
    """Whether Redis denied the command. It may run others."""
    return type(error).__name__ in ("NoPermissionError", "ResponseError")
