"""The random driver: moments and faults are drawn from a seed."""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import redsem_async._protocol.operations as op
from redsem_async._core.keys import permit_id
from redsem_async._protocol.errors import ErrorKind
from redsem_async._protocol.pushes import Deleted, Revoked
from redsem_async._protocol.replies import Reply
from tests.worlds.look import Ran
from tests.worlds.loop import RESOLUTION
from tests.worlds.process import Link, Process
from tests.worlds.world import Event, Made, World

from .books import Books

# Calls that change something, and would change it twice.
ONCE = op.Adopt, op.StartBackOff, op.Delete, op.Detach, op.SetLimit
TURN = 2e-6  # seconds that a turn of a loop takes: time goes on even when all are busy
LONG_GONE = 20.0  # seconds after which a server knows at last that a link is
WINDOW = 0.5  # seconds
RECOVERY = 2.5  # after everything was wrong
MOST_IDLE_CALLS = 300  # in so many seconds
TROUBLES = ErrorKind.BUSY, ErrorKind.READ_ONLY, ErrorKind.NO_MEMORY, ErrorKind.REFUSED
STORMS = (
    *("stop", "kill", "stall", "BUSY", "READ_ONLY", "NO_MEMORY", "REFUSED", "forget", "flush"),
    *("refuse all", "cut all", "deafen all", "evict"),
)
_USUAL = {"run", "receive", "connect", "notice", "go on", "relieve"}


class Walk(World):
    """One run of several processes.

    Attributes:
        trip: seconds one way, about.
        chances: how unkind the network is, by the kind of fault.
        longest_delay: seconds that a command may be on its way on a closed link.
        faults: how often each kind happened.
        ends: of attempts.
        unruly: something happened that may keep the server from answering.
    """

    turn_takes = TURN
    trips = True

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        super().__init__(0.0, traced=traced)
        self.seed = seed
        self.random = random.Random(seed)
        self.trip, self.longest_delay = 0.001, 5.0
        self.chances: dict[str, float] = {}
        self.books = Made(lambda name: Books(self, name))
        self.faults, self.ends = Counter[str](), Counter[str]()
        self.closed = set[Process]()
        self.unruly = self.out_of_memory = self.healed = False
        self.operations = 0
        self.refused_at = -math.inf
        self._chance = random.Random(f"weather of {seed}")
        self._trips: dict[tuple[str, int, int], tuple[random.Random, float]] = {}
        self._due: list[tuple[float, int, Event | Callable[[], None]]] = []
        self._count = 0
        self._trouble: dict[ErrorKind, float] = {}  # until when
        self._stalled_until = self._refusing_until = 0.0
        self._hung = set[tuple[int, int]]()  # attempts to connect that have no answer
        self._forgot_at = -math.inf  # and what was sent before names scripts that are not there
        self._idle_since, self._idle_calls = 0.0, 0
        self._ran: dict[tuple[str, int], int] = {}  # acquires, by the link that they came on

    def fault(self, kind: str) -> None:
        self.faults[kind] += 1
        self.note("FAULT", kind)

    # -- time

    def at(self, moment: float, event: Event | Callable[[], None]) -> None:
        """Have *event* happen at *moment*; those of one moment in the order of asking."""
        self._count += 1
        heapq.heappush(self._due, (moment, self._count, event))

    def after(self, delay: float, event: Event | Callable[[], None]) -> None:
        self.at(self.now + delay, event)

    def run(self, most: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen for *most* seconds, or until *until*. Returns whether it came true."""
        deadline = self.now + most
        while not self.violations:
            if until():
                return True
            due = self._due[0][0] if self._due else math.inf
            moment = min(due, *(process.next_moment() for process in self.processes))
            if moment > deadline or moment == math.inf:
                self.now = max(self.now, deadline)
                return until()
            self.now = max(self.now, moment)
            if due <= self.now:
                event = heapq.heappop(self._due)[2]
                if isinstance(event, Event):
                    self._happen(event)
                else:
                    event()
            for process in self.processes:
                process.settle()
        return False

    def on_way(self, event: Event) -> None:
        draw, last = self._trips.get(event[:3]) or (random.Random(f"{event} of {self.seed}"), 0.0)
        trip = self.trip * draw.uniform(0.2, 2.0)
        moment = max(last, self.now + trip)
        match event.what:
            case "connect":
                moment += trip
                for kind in ("refuse", "hang"):
                    if self._strikes(kind):
                        self.at(moment, partial(self.strike, Event(kind, event.who)))
            case "go on" | "relieve":
                moment = self.now + event.seconds
            case "notice":
                link = self.processes[event.who].links[event.which]
                _, last = self._trips.get(link.event("run")[:3], (draw, 0.0))
                unnoticed = draw.uniform(0, LONG_GONE) * link.unnoticed
                moment = max(last, self.now, link.blocked_until) + trip + unnoticed
            case _:
                pass
        self._trips[event[:3]] = draw, moment
        self.at(moment, event)

    def _happen(self, event: Event) -> None:
        match event.what:
            case "run":
                link = self.processes[event.who].links[event.which]
                wait = max(link.blocked_until, self._stalled_until)
                if link.going and wait > self.now:
                    self.at(wait, event)
                elif link.going and not self._is_struck(link, link.going[0].command):
                    self._note_lateness(link, link.going[0].command)
                    self.do(event)
            case "connect" if self.now < self._refusing_until:
                self.do(event._replace(what="refuse"))
            case "connect" if (event.who, event.which) in self._hung:
                pass
            case _:
                while self._due and self._due[0][0] <= self.now and self._due[0][2] == event:
                    heapq.heappop(self._due)  # what comes at one moment is read in one turn
                    self.do(event, rests=False)
                self.do(event)

    # -- faults

    def _strikes(self, kind: str) -> bool:
        chance = 0.0 if self.healed else self.chances.get(kind, 0.0)
        return chance > 0 and self._chance.random() < chance

    def strike(self, event: Event) -> None:
        if not self.healed:
            self.do(event)

    def _is_struck(self, link: Link, command: op.AnyOperation) -> bool:
        """Whether something keeps *command* from running now."""
        who, draw, soon = link.process.index, self._chance, self.now + RESOLUTION
        once = isinstance(command, ONCE)
        if not link.open:
            return False
        if self._strikes("press"):
            self.do(Event("press", who, 0, 5 * self.trip))
        if self._strikes("lose"):
            self.do(Event("lose", who))
            self.do(Event("cut", who, draw.randrange(2)))
        elif self._strikes("overtaken" if once else "run late"):
            self.do(Event("cut", who, 0, draw.uniform(0.0, self.longest_delay)))
            self.at(link.blocked_until, link.event("run"))
            return True
        elif self._strikes("half-open"):
            self.do(_half_open(draw, who))
        elif once and self._strikes("unanswered"):
            self.at(soon, partial(self.strike, _half_open(draw, who)))
        elif self._strikes("lose reply"):
            self.at(soon, partial(self.strike, Event("cut", who, draw.randrange(2))))
        return not link.going

    def storm(self, seconds: float, lease: float) -> None:
        """Draw what strikes in so many seconds, beside the weather."""
        draw = random.Random(f"storm of {self.seed}")
        for kind in draw.sample(STORMS, draw.randint(0, 4)):
            for _ in range(draw.choice((1, 1, 2, 4))):
                moment = draw.random() * seconds
                for event in self._of_storm(kind, draw, lease):
                    self.at(moment, partial(self.strike, event))

    def _of_storm(self, kind: str, draw: random.Random, lease: float) -> list[Event]:
        who, some = draw.randrange(len(self.processes)), draw.random()
        all_of = [process.index for process in self.processes if draw.random() < 0.5]
        match kind:
            case "kill":
                return [Event("kill", who, draw.randrange(2))]
            case "BUSY" | "READ_ONLY" | "NO_MEMORY" | "REFUSED":
                which = [trouble.name for trouble in TROUBLES].index(kind)
                return [Event("trouble", 0, which, lease * some)]
            case "flush":  # what runs late finds nothing of what was there
                return [*(Event("cut", i, 0, 5 * some) for i in all_of[:1]), Event("flush")]
            case "cut all":
                return [Event("cut", i, 0, 5 * some) for i in all_of]
            case "deafen all":
                return [_half_open(draw, i) for i in all_of]
            case "evict":
                return [Event("evict", 0, draw.randrange(1 << 20))]
            case _:
                return [Event(kind, who, 0, 1.5 * lease * some)]

    def do(self, event: Event, *, rests: bool = True) -> None:
        what, who, which, seconds = event
        if what not in _USUAL:
            self.fault(what)
        match what:
            case "stall":
                self._stalled_until = max(self._stalled_until, self.now + seconds)
            case "trouble":
                self.out_of_memory |= TROUBLES[which] is ErrorKind.NO_MEMORY
                self._trouble[TROUBLES[which]] = self.now + seconds
            case "forget":
                self._forgot_at = self.now
            case "flush" | "evict":
                before, of = self.looks, None
                if what == "flush":
                    self.server.flush()
                else:
                    of = self.server.evict(which)
                for name in [name for name in before if of in (None, name)]:
                    self.books[name].forgot_some(before[name], self.looks[name])
            case "refuse all":
                self._refusing_until = self.now + seconds
                for process in self.processes:
                    super().do(Event("cut", process.index))
            case "hang":
                dials = self.processes[who].dials
                self._hung |= {(who, k) for k, dialled in enumerate(dials) if not dialled.done()}
            case "kill":
                if sum(process.alive for process in self.processes) > 1:
                    super().do(event)
                    for books in self.books.values():
                        books.killed(self.processes[who])
            case _:
                super().do(event, rests=rests)

    def heal(self) -> None:
        """From now on nothing goes wrong any more; what is under way arrives."""
        self.note("healed")
        self.healed = True
        self._trouble.clear()
        self._stalled_until = self._refusing_until = 0.0
        self._hung.clear()
        for process in self.processes:
            process.stalled_until = min(process.stalled_until, self.now)
            self.after(0.0, Event("go on", process.index))
            for k in range(len(process.dials)):
                self.after(self.trip, Event("connect", process.index, k))
            for link in process.links:
                link.blocked_until = 0.0
                for _ in link.going:
                    self.after(0.0, link.event("run"))
                if link.deaf and link.open:
                    self.after(self.trip, Event("cut", process.index))

    # -- what is judged

    def hears(self, process: Process) -> bool:
        troubles = self._stalled_until, self._forgot_at, *self._trouble.values()
        return self.now > max(troubles) + RECOVERY and super().hears(process)

    def refusal(self, command: op.AnyOperation, sent: float) -> ErrorKind | None:
        found = [kind for kind, until in self._trouble.items() if self.now < until]
        if not isinstance(command, op.Acquire):
            found = [kind for kind in found if kind is not ErrorKind.NO_MEMORY]
        if not isinstance(command, op.Refresh):
            found = [kind for kind in found if kind is not ErrorKind.REFUSED]
        if not found and sent <= self._forgot_at:
            found = [ErrorKind.RETRY_NOW]
        for kind in found[:1]:
            self.fault(f"answer {kind.name}")
            if kind is ErrorKind.REFUSED:
                self.refused_at = self.now
        return found[0] if found else None

    def ran(self, link: Link, ran: Ran) -> None:
        self.operations += 1
        name = ran.call.semaphore.address.name
        changed = self.books[name].ran(ran, late=not link.open)
        # Calls that change nothing may be made now and then, and not as fast as it goes.
        if changed or self.now - self._idle_since > WINDOW:
            self._idle_since, self._idle_calls = self.now, 0
        self._idle_calls += not changed
        few = self._idle_calls <= MOST_IDLE_CALLS
        self.unless(few, f"{self._idle_calls} calls in {WINDOW} s changed nothing")

    def _note_lateness(self, link: Link, call: op.AnyOperation) -> None:
        if not link.open:
            self.fault("command of a closed link")
            if isinstance(call, ONCE):
                self.fault(f"late {call.script}")
        for number in call.numbers if isinstance(call, op.Acquire) else ():
            ran_on = self._ran.setdefault((link.listener.hub_id, number), link.number)
            if ran_on != link.number:
                self.fault("late duplicate" if ran_on > link.number else "acquire sent again")

    def turned(self, process: Process) -> None:
        self.check_state(process)
        for books in self.books.values():
            books.look(process)

    def heard(self, link: Link, content: object, command: op.AnyOperation | None) -> None:
        """See what becomes of what is taken."""
        lost: list[int] = []
        match content:
            case Revoked():
                lost = [*content.numbers]
            case Deleted():
                self.books[content.name].gone(link.process)
            case Reply() if isinstance(command, op.Refresh):
                pairs = zip(command.numbers, content.answers, strict=True)
                lost = [number for number, held in pairs if not held]
            case _:
                pass
        ids = {permit_id(link.listener.hub_id, number) for number in lost}
        for books in self.books.values() if ids else ():
            books.gone(link.process, ids)


def _half_open(draw: random.Random, who: int) -> Event:
    """Nothing comes back; nor arrives anything at the server, or that comes late, or all does."""
    form = draw.randrange(3)
    return Event("deafen", who, int(form == 0), draw.uniform(0, 5) * (form == 1))
