"""One post for each server that a hub talks to: letters out, answers and messages in.

It collects what its lanes want written into few writes, keeps one link open for as long as there
is something to say, and opens a new one when that breaks. Everything but opening and closing
happens in callbacks of the event loop, so no caller's cancellation can interrupt a command.
"""

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

from ._backend import Backend, Letter, Link, Node, Refused
from ._backoff import delays
from ._batches import Batch, ConfirmBatch
from ._claim import Claim
from ._clock import now as clock
from ._config import Clock
from ._errors import BackendError, BackendUnavailable
from ._hindrance import LONGEST_HOLD, Hindrance
from ._keys import Address, Mode
from ._lane import GRACE, MOST_ACQUIRES, Lane
from ._lease import patience
from ._protocol import Answered, Fault, Message, Trouble
from ._watch import watch

logger = logging.getLogger("redsem_async")

WINDOW = 3  # letters on their way at a time; more wait and make larger batches
FAR = 0.0005  # seconds of distance, for each of which one more may be on its way
LARGEST_WINDOW = 8
ENOUGH = 32  # requests that a far server is sent at once, before others can join them
LONGEST_PATIENCE = 3.0  # seconds without an answer, before a connection counts as dead
IDLE = 5.0  # seconds for which an idle post keeps its link
CONNECT_TIME = 5.0  # seconds for one attempt to connect
OUTAGE_CHECK = 0.1  # seconds between looks at whose patience an outage outlasts
DRAIN = 10.0  # seconds that a cancelled post gives the tasks that were cancelled with it
LAST_WORDS = 1.0  # seconds for what is left to say at the end
REDIRECTIONS = 3  # in a row, after which a lane waits a moment before it follows the next


class Identity(Protocol):
    """What a post needs of its hub."""

    backend: Backend
    loop: asyncio.AbstractEventLoop
    hub_id: str
    closing: bool

    def unavailable(self, name: str, place: str, cause: Exception | None) -> BackendUnavailable:
        """An error that says what could not be reached, and why."""
        ...

    def turned_away(self, name: str, place: str, cause: BaseException) -> BackendError:
        """An error that says who refused us, and why."""
        ...

    def warn_of_deafness(self, place: str, error: Exception) -> None:
        """Say once that no messages come."""
        ...

    def post_at(self, node: Node) -> "Post":
        """The post of *node*."""
        ...

    def open_posts(self) -> "set[Post]":
        """Those that keep a link, or open one."""
        ...

    async def ended(self, post: "Post") -> None:
        """*post* has closed its link."""
        ...


class Post:
    """Talks to one server, for all semaphores of a client that it keeps."""

    listens = True

    def __init__(self, hub: Identity, node: Node) -> None:
        self.hub = hub
        self.node = node
        self.lanes: WeakValueDictionary[Address, Lane] = WeakValueDictionary()
        self.deaf = False
        self.enough = MOST_ACQUIRES
        self.trouble: Exception | None = None
        self._loop = hub.loop
        self._trouble_since = 0.0
        self.outage_since: float | None = None  # of one that was logged; it outlasts the link
        self._ready: deque[Lane] = deque()
        self._on_way: deque[Batch] = deque()
        self._unconfirmed: list[Claim] = []
        self._confirming: Batch | None = None  # what it does blocks the link
        self._shortest = math.inf  # lease of what is asked for here
        self._link: Link | None = None
        self._lost_link = False
        self._keeper: asyncio.Task[None] | None = None
        self._keeping = False  # the keeper has begun, and will clean up
        self._stirred = asyncio.Event()
        self._hurried = asyncio.Event()
        self._quiet: asyncio.Future[None] | None = None
        self._flush_due = False
        self._lone = False
        self._held_back: asyncio.TimerHandle | None = None
        self._outage_timer: asyncio.TimerHandle | None = None
        self._alive_timer: asyncio.TimerHandle | None = None
        self._window = WINDOW
        self._patience = LONGEST_PATIENCE
        self._delays: Iterator[float] = delays(random.random)
        self._holds: Iterator[float] = delays(random.random, longest=LONGEST_HOLD)
        self._active_at = 0.0
        self._trip = math.inf  # seconds, the shortest of this link

    @property
    def hub_id(self) -> str:
        """Who the servers know us as."""
        return self.hub.hub_id

    @property
    def open(self) -> bool:
        """Whether a link is kept, or being opened."""
        return self._keeper is not None

    # -- for the lanes

    @property
    def linked(self) -> bool:
        """Whether there is a link to write to."""
        return self._link is not None

    @property
    def fresh_at(self) -> float | None:
        """When the newest letter was sent that was answered on this link, for any lane."""
        return self._link.fresh_at if self._link else None

    @property
    def lead(self) -> float:
        """How long before an answer is needed to ask for it: 0 where GRACE is enough."""
        return self._trip if GRACE / 2 < self._trip < math.inf else 0.0

    def hurry(self) -> None:
        """Somebody does not wait: find out at once whether there is anybody to ask."""
        self._hurried.set()

    def confirm(self, claim: Claim) -> None:
        """Tell the lane of *claim*, granted on this link, when enough replicas know of it."""
        self._unconfirmed.append(claim)
        self._flush_soon()

    def unavailable(self, name: str, cause: Exception | None) -> BackendUnavailable:
        """An error that says what could not be reached, and why."""
        return self.hub.unavailable(name, self.node.place, cause)

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
            self._loop.call_soon(self._flush)

    # -- writing

    def _flush(self) -> None:
        """Write what the lanes want written, in turns, as far as the window goes."""
        self._flush_due = False
        if logger.isEnabledFor(logging.DEBUG) is not watch.debug:
            watch.follow_level()
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
        if self._unconfirmed and self._confirming is None:
            self._confirming = self._take_confirmation()
            batches.append(self._confirming)
        if not batches:
            return
        self._lone = len(batches) == 1 and batches[0].lone
        now = self._active_at = clock()
        self._on_way.extend(batches)
        link.send(batches, now)
        if self._alive_timer is None:
            self._watch()

    def _take_confirmation(self) -> Batch:
        """One for all lanes, since it covers all that was written here; one at a time, and short.

        Whatever is written behind it has to wait, refreshes too.
        """
        replicas = self._unconfirmed[0].terms.min_replicas
        claims = [c for c in self._unconfirmed if c.terms.min_replicas == replicas]
        self._unconfirmed = [c for c in self._unconfirmed if c.terms.min_replicas != replicas]
        return ConfirmBatch(claims, most=self._shortest / 10)

    def _come_nearer(self, trip: float) -> None:
        """At a distance more letters may be on their way, and smaller ones: nobody waits twice."""
        self._trip = trip
        self._window = min(WINDOW + int(trip / FAR), LARGEST_WINDOW)
        self.enough = ENOUGH if trip >= FAR else MOST_ACQUIRES

    def _watch(self) -> None:
        """Look after the longest that the oldest letter's answer may take."""
        overdue_in = self._on_way[0].sent_at + self._patience - clock()
        self._alive_timer = self._loop.call_later(max(0.0, overdue_in), self._check_alive)

    def expect_lease(self, lease: float) -> None:
        """Permits of so short a lease are used: silence is noticed in time for them."""
        self._shortest = min(self._shortest, lease)
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
        if batch is self._confirming:
            self._confirming = None
        batch.answered_at = clock()
        trip = batch.answered_at - letter.sent_at
        if trip < self._trip:
            self._come_nearer(trip)
        lane = batch.lane
        if isinstance(answer, Fault):
            answer = self._refused(batch, answer)
        elif (
            self.trouble is not None or self.outage_since is not None or lane.hindrance is not None
        ):
            self._out_of_trouble(lane)
        batch.settle(answer)
        if lane.hindrance is not None:
            self._see_off(lane, lane.hindrance)
        if self._ready or self._unconfirmed:
            self._flush_soon()
        if self._quiet is not None:
            self._look_for_quiet(self._quiet)

    def _look_for_quiet(self, quiet: "asyncio.Future[None]") -> None:
        """Wake whoever waits until there is nothing to do."""
        if not quiet.done() and not self.has_work():
            quiet.set_result(None)

    def _refused(self, batch: Batch, fault: Fault) -> Fault:
        lane = batch.lane
        match fault.trouble:
            case Trouble.BUSY | Trouble.DEMOTED:
                self._in_trouble(fault.error, hurry=True)
                if self._held_back is None:
                    delay = next(self._holds)
                    self._held_back = self._loop.call_later(delay, self._go_on)
            case Trouble.UNSETTLED:
                if not isinstance(batch, ConfirmBatch):  # of claims, and not of the lane
                    self._hold(lane, fault.error)
            case Trouble.MOVED | Trouble.ASK:
                return self._redirect(lane, fault)
            case Trouble.AGAIN:
                pass
            case _:
                self._out_of_trouble(lane)
        return fault

    def told(self, prefix: str, message: Message) -> None:
        for mode, kept_by in _KINDS:
            lane = self.lanes.get(Address(mode, prefix, message.name, kept_by))
            if lane is not None:
                lane.told(message, self.fresh_at)

    def unsubscribed(self, address: Address) -> None:
        """The server tells no more of that semaphore: another one keeps it."""
        lane = self.lanes.get(address)
        if lane is not None and lane.active:
            lane.beat()  # and find out which

    def deafened(self, error: Exception) -> None:
        self.deaf = True
        self.hub.warn_of_deafness(self.node.place, error)
        for lane in self.lanes.values():
            lane.introduced = False

    def link_lost(self, error: Exception) -> None:
        if self._link is None:
            return
        self._link = None
        self._lost_link = True
        self._stirred.set()
        if self.has_work():
            self._in_trouble(error)
        self._confirming = None
        unanswered, self._on_way = self._on_way, deque()
        for batch in reversed(unanswered):
            batch.write_again(arrived=True)
        # What is to be confirmed was written on the link that is gone.
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for claim in unconfirmed:
            claim.lane.confirm_anew(claim)
        for lane in list(self.lanes.values()):
            if lane.hindrance is not None:
                self._see_off(lane, lane.hindrance)
        if self._quiet is not None:
            self._look_for_quiet(self._quiet)

    def _drop(self, error: Exception) -> None:
        link = self._link
        if link is not None:
            self.link_lost(error)
            link.abort()

    # -- in a cluster: semaphores that another server keeps, or will

    def _redirect(self, lane: Lane, fault: Fault) -> Fault:
        """Send *lane* where *fault* says; as a guest, for its next letters, where it says ASK."""
        node = self.hub.backend.redirected(lane.address, fault, here=self.node)
        if node is None:
            return Fault(Trouble.REFUSED, fault.error)
        hindrance = _hindrance_of(lane)
        hindrance.bound_for, hindrance.as_guest = node, fault.trouble is Trouble.ASK
        hindrance.redirections += 1
        if hindrance.redirections > REDIRECTIONS:
            self._hold(lane, fault.error)
        return fault

    def _see_off(self, lane: Lane, hindrance: Hindrance) -> None:
        """Let *lane* go where it is bound for, once nothing of it is on its way here."""
        if hindrance.bound_for is None:
            return
        self._set_aside(lane)
        if any(batch.lane is lane for batch in self._on_way):
            return
        post = self.hub.post_at(hindrance.bound_for)
        was_guest, lane.wire.asking = lane.wire.asking, hindrance.as_guest
        # A guest goes home when it is answered.
        hindrance.bound_for = self.node if hindrance.as_guest else None
        hindrance.as_guest = False
        if post is not self:
            self.lanes.pop(lane.address, None)
            post.lanes[lane.address] = lane
            lane.post = post
            post.expect_lease(lane.shortest)
            if not (was_guest or lane.wire.asking):
                lane.reconnected()  # its messages come another way from now on
        self._put_back(lane)

    async def _look_elsewhere(self) -> None:
        """See off the lanes whose semaphores another server keeps by now, as others say."""
        await self.hub.backend.explore(but=self.node)
        for lane in list(self.lanes.values()):
            node = self.hub.backend.node_for(lane.address)
            if node is not self.node:
                hindrance = _hindrance_of(lane)
                hindrance.bound_for = hindrance.bound_for or node
                self._see_off(lane, hindrance)

    def _hold(self, lane: Lane, error: Exception) -> None:
        """Write nothing of *lane* for a moment: what it asks for cannot be had yet."""
        hindrance = _hindrance_of(lane)
        hindrance.begin(error, clock())
        lane.fail_hurried(lane.unavailable)
        if not hindrance.held_back:
            self._set_aside(lane)
            moment = min(hindrance.hold(), lane.shortest / 10)  # leases go on meanwhile
            self._loop.call_later(moment, self._let_go, lane, hindrance)

    def _let_go(self, lane: Lane, hindrance: Hindrance) -> None:
        hindrance.held_back = False
        if hindrance.error is not None:
            lane.fail_outlasted(hindrance.since, lane.unavailable)
        if hindrance.bound_for is None or lane.wire.asking:
            self._put_back(lane)

    def _set_aside(self, lane: Lane) -> None:
        """Take nothing of *lane* until it is put back."""
        if lane.ready and lane in self._ready:
            self._ready.remove(lane)
        lane.ready = True

    def _put_back(self, lane: Lane) -> None:
        hindrance = lane.hindrance
        if hindrance is None or not hindrance.held_back:
            lane.ready = False
            if lane.eager:
                lane.wake()

    # -- trouble

    def _in_trouble(self, error: Exception, *, hurry: bool = False) -> None:
        if self.trouble is None:
            self._trouble_since = clock()
            self._outage_timer = self._loop.call_later(OUTAGE_CHECK, self._check_outage)
        self.trouble = error
        if hurry:
            for lane in list(self.lanes.values()):
                lane.fail_hurried(lane.unavailable)

    def _out_of_trouble(self, lane: Lane) -> None:
        if hindrance := lane.hindrance:
            hindrance.error, hindrance.redirections = None, 0
            if hindrance.passed:
                lane.hindrance = None
        if self.outage_since is not None:
            self._say_it_is_over(self.outage_since)
        if self.trouble is not None:
            self.trouble = None
            self._delays = delays(random.random)
            self._holds = delays(random.random, longest=LONGEST_HOLD)
            if self._outage_timer is not None:
                self._outage_timer.cancel()
                self._outage_timer = None

    def _check_outage(self) -> None:
        self._say_it_has_begun()
        for lane in list(self.lanes.values()):
            lane.fail_outlasted(self._trouble_since, lane.unavailable)
        self._outage_timer = self._loop.call_later(OUTAGE_CHECK, self._check_outage)

    def _say_it_has_begun(self) -> None:
        ending = self._keeper is None or self._keeper.cancelling()
        if self.outage_since is None and not ending:
            self.outage_since = self._trouble_since
            place, facts = self.node.place, {"event": "outage", "place": self.node.place}
            logger.warning("%s cannot be asked: %s", place, self.trouble, extra=facts)

    def _say_it_is_over(self, since: float) -> None:
        self.outage_since = None
        place, lasted = self.node.place, clock() - since
        facts = {"event": "outage over", "place": place, "seconds": lasted}
        logger.warning("%s can be asked again, after %.3g s", place, lasted, extra=facts)

    def _go_on(self) -> None:
        self._held_back = None
        self._flush()

    # -- the keeper

    def _start(self) -> None:
        self._stirred.set()
        if self._keeper is None:
            self._keeper = self._loop.create_task(self._keep(), name="redsem-hub")
            _KEEPERS.add(self._keeper)

    def has_work(self) -> bool:
        """Whether anything is held, waited for, to be written or on its way."""
        return bool(self._on_way) or any(lane.active for lane in self.lanes.values())

    async def _keep(self) -> None:
        """Hold a link open for as long as there is work, and a while longer."""
        self._keeping = True
        try:
            while True:
                self._stirred.clear()
                if self._link is None:
                    await self._connect()
                if self._link is None and not self.has_work():
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE):
                        await self._stirred.wait()
                if not self.has_work() and clock() - self._active_at >= IDLE:
                    break
        except asyncio.CancelledError:
            if not self.hub.closing:
                await self._drain()
            raise
        finally:
            await self._end()

    async def _connect(self) -> None:
        look: asyncio.Task[None] | None = None
        if self._lost_link:
            # Meanwhile, and not before: others may be silent where this one is not.
            self._lost_link = False
            look = self._loop.create_task(self._look_elsewhere())
        try:
            while self.has_work():
                self.deaf = False
                self._trip = math.inf
                try:
                    async with asyncio.timeout(CONNECT_TIME):
                        self._link = await self.node.connect(self)
                    break
                except Refused as refusal:
                    self._turned_away(refusal.__cause__ or refusal)
                except Exception as error:  # noqa: BLE001 - the network's, or of the user's making
                    look = look or self._loop.create_task(self._look_elsewhere())
                    await asyncio.wait([look])
                    look = None
                    self._in_trouble(error, hurry=True)
                self._hurried.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(next(self._delays)):
                        await self._hurried.wait()
        finally:
            if look is not None:
                look.cancel()
        if self._link is not None:
            for lane in list(self.lanes.values()):
                lane.reconnected()
            self._flush()

    def _turned_away(self, error: BaseException) -> None:
        for lane in list(self.lanes.values()):
            name, place = lane.address.name, self.node.place
            lane.fail_all(partial(self.hub.turned_away, name, place, error))

    async def _drain(self) -> None:
        """See through what the tasks still say that were cancelled together with this one.

        ``asyncio.run`` cancels every task at its end: those that hold a permit release it now,
        and may take a while to come to that. When none of them is left, the rest is released.
        """
        deadline = self._loop.time() + DRAIN
        known = self.hub.open_posts()
        with suppress(asyncio.CancelledError):
            while self.has_work() and (left := deadline - self._loop.time()) > 0:
                # Not by a difference of sets: other threads may have keepers come and go.
                others = [task for task in asyncio.all_tasks() if task not in _KEEPERS]
                if not others:
                    break
                self._quiet = self._loop.create_future()
                pause = min(left, self._patience)
                await asyncio.wait(
                    [*others, self._quiet], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                for lane in self.lanes.values():
                    for claim in lane.held():
                        _ = lane.refresh(claim)
            self._release_all()
            await self._say_last_words()
            # Where a semaphore turned out to have moved to: the loop does not wait for those.
            for other in self.hub.open_posts() - known:
                await other.until_quiet(self._loop.time() + LAST_WORDS)
                await other.close()

    def _release_all(self) -> None:
        for lane in list(self.lanes.values()):
            for claim in lane.held():
                lane.close(claim)

    async def _say_last_words(self) -> None:
        deadline = self._loop.time() + LAST_WORDS
        while self.has_work() and (left := deadline - self._loop.time()) > 0:
            if self._link is None:
                with suppress(Exception):
                    async with asyncio.timeout(left):
                        await self._connect()
            self._quiet = self._loop.create_future()
            await asyncio.wait([self._quiet], timeout=left)

    async def _end(self) -> None:
        """Close the link."""
        self._keeper, self._keeping = None, False
        link, self._link = self._link, None
        for timer in (self._alive_timer, self._held_back, self._outage_timer):
            if timer is not None:
                timer.cancel()
        self._alive_timer = self._held_back = self._outage_timer = None
        self.trouble, self._lost_link = None, False
        self._on_way.clear()
        self._unconfirmed.clear()
        self._confirming = None
        for lane in self._ready:
            lane.ready = False
        self._ready.clear()
        for lane in list(self.lanes.values()):
            lane.cut_off()
        try:
            await self.hub.ended(self)
        finally:
            if link is not None:
                await link.close()

    def give_up(self) -> None:
        """What nobody answered goes back to its lanes, to fail there."""
        if self._on_way:
            self._drop(TimeoutError("no answer came before it was closed"))

    async def close(self) -> None:
        """End at once: nothing is left to say."""
        if self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            begun = self._keeping
            keeper.cancel()
            await asyncio.wait([keeper])
            if not begun:
                await self._end()

    async def until_quiet(self, deadline: float) -> None:
        """Wait until there is nothing to do, or *deadline* of the loop's clock."""
        while self.has_work() and (left := deadline - self._loop.time()) > 0:
            self._quiet = self._loop.create_future()
            await asyncio.wait([self._quiet], timeout=left)


_KINDS: tuple[tuple[Mode, Clock], ...] = tuple(
    (mode, kept_by) for mode in ("fair", "zset") for kept_by in ("server", "local")
)
_KEEPERS: WeakSet["asyncio.Task[None]"] = WeakSet()


def _hindrance_of(lane: Lane) -> Hindrance:
    if lane.hindrance is None:
        lane.hindrance = Hindrance()
    return lane.hindrance
