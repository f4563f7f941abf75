"""One schedule: what a seed decides, how it runs, and what is left when it is over."""

import asyncio
import gc
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redsem_async import AnySemaphore, FairSemaphore, Semaphore
from redsem_async._core.keys import Mode
from redsem_async._core.lease import heartbeat_interval
from tests.worlds.judge import forgotten
from tests.worlds.look import Look
from tests.worlds.loop import running
from tests.worlds.process import Process
from tests.worlds.shorten import kind_of, shortened
from tests.worlds.stand_ins import in_place
from tests.worlds.world import Violation

from .actors import KEYS, Actor, Common, Habits
from .holdings import Attempt
from .walk import Operation, Walk, Weather

QUIET = 1.6  # seconds after which nothing is on its way any more, once all is healed
PROMPT = 0.1  # seconds, beside some trips, in which a permit that became free finds a waiter
BROKEN = 1.2  # where links break meanwhile
RECOVERY = 2.5  # after everything was wrong
LOOK = 0.02  # seconds between two looks at that
KEYED = 0.6  # of the schedules in fair mode
SLOTTED = 0.3  # of all, where all clients declare the same limit
TRIES = 100  # runs at most, to find a shorter one
LONGEST_HOLDS = 0.15  # of the semaphores in a process


@dataclass
class Outcome:
    """What a schedule was."""

    seed: int
    operations: int
    grants: int
    seconds: float
    faults: Counter[str]
    ends: Counter[str]
    violations: list[str]
    trace: list[str] | None
    done: list[Operation]


class Schedule:
    """Everything of one run, drawn from a seed."""

    def __init__(
        self, seed: int, *, traced: bool = False, only: Sequence[Operation] | None = None
    ) -> None:
        attempts = None if only is None else {w for _, w in only if w.what == "attempt"}
        struck = None if only is None else [o for o in only if o[1].what != "attempt"]
        self.world = Walk(seed, traced=traced, struck=struck)
        self.random = draw = self.world.random
        temper = draw.random()
        self.calm = temper < 0.25  # nothing goes wrong, but that tasks are cancelled
        self.gusty = 0.25 <= temper < 0.4  # and links break, which is put right at once
        self.lease = draw.choice((0.3, 1.0, 1.0, 3.0, 10.0))
        self.storm = draw.uniform(0.5, 4.0) * max(1.0, min(self.lease, 3.0))
        self.world.weather = self._weather()
        self.holdings = self.world.holdings
        self.holdings.unruly = not self.calm
        self.common = Common(self.world, self.holdings, self._habits(), attempts)
        self.kind = draw.choice((Semaphore, FairSemaphore))
        self.mode: Mode = "zset" if self.kind is Semaphore else "fair"
        if self.mode == "fair" and draw.random() < KEYED:
            self.mode = draw.choice(("fair+keys", "fair+keys", "fair+share"))
            self.common.keyed = True
        names = ["jobs", "more"][: draw.choice((1, 1, 1, 2))]
        self.limits = {name: draw.choice((1, 1, 2, 3, 5)) for name in names}
        self.mixed = draw.random() < 0.15
        # Lists of different lengths may be refused.
        self.slotted = not self.mixed and draw.random() < SLOTTED
        self.eager = draw.random() < 0.5  # many attempts
        self.workers: list[tuple[Process, asyncio.Task[Any]]] = []
        self.attempts = 0  # of all workers, each with work to do, and perhaps one after another
        self.semaphores: dict[Process, list[AnySemaphore]] = {}
        self._idle_since: dict[str, tuple[float, int]] = {}
        for number in range(draw.randint(1, 4)):
            self._make_process(number)

    # -- what the seed decides

    def _weather(self) -> Weather:
        draw = self.random
        weather = Weather(draw.choice((0.0001, 0.001, 0.01)))
        if self.calm:
            return weather
        if self.gusty:
            weather.chances |= {"lose reply": 0.03, "lose": 0.03}
            return weather
        weather.longest_delay = draw.choice((0.5, 5.0))
        strength = draw.choice((0.003, 0.02, 0.06))
        for kind in draw.sample(_UNKIND, draw.randint(0, 4)):
            weather.chances[kind] = _OFTEN.get(kind, strength)
        return weather

    def _habits(self) -> Habits:
        draw = self.random
        actions = ["enter", "guard", "guard", "guard", "bare", "try"]
        unusual = ["drop", "detach", "adopt", "look"]
        if not (self.calm or self.gusty):
            unusual += ["foreign", "delete", "close"]
        for action in draw.sample(unusual, draw.choice((0, 0, 1, 2))):
            actions += [action] * (3 if action == "adopt" else 1)
            if action == "adopt":
                actions.append("detach")
        if draw.random() < 0.2:
            actions.append("limit")
        theme = draw.random()
        hands_over = theme < 0.15
        if hands_over:
            actions = ["bare", "bare", "detach", "detach", "detach", "adopt", "adopt"]
            if not (self.calm or self.gusty):
                chance = draw.choice((0.0, 0.2))
                self.world.weather.chances |= {"unanswered": chance, "overtaken": chance}
        elif theme < 0.22 and not (self.calm or self.gusty):
            actions = ["bare", "guard", "limit", "limit", "limit", "delete"]
        overloads = draw.choice((0.0, 0.0, 0.0, 0.1))
        if overloads:
            actions.append("back off")
        short = self.lease * 0.2
        timeouts: list[tuple[float | None, ...]] = [
            (None,),
            (None, 0.0, short, 2 * self.lease),
            (short / 4, short),
        ]
        lengths = (0.3 * self.lease, 1.5 * self.lease) if hands_over else (0.0, 0.02, 0.3)
        return Habits(
            rest=draw.choice((0.0, 0.01, 0.5)),
            work=draw.choice((*lengths, 1.5 * self.lease)),
            timeouts=draw.choice(timeouts),
            heaviest=draw.choice((1, 1, 3)),
            cancelled=draw.choice((0.0, 0.1, 0.4)),
            blocked=0.0 if self.calm or self.gusty else draw.choice((0.0, 0.0, 0.1)),
            overloads=overloads,
            actions=tuple(actions),
        )

    def _make_process(self, number: int) -> None:
        draw = self.random
        rate, offset = 1 + draw.uniform(-0.004, 0.004), 1000.0 * (1 + number)
        process = Process(self.world, rate=rate, offset=offset)
        process.no_push = draw.random() < 0.05
        semaphores = self.semaphores[process] = []
        for name, usual in self.limits.items():
            limit = draw.choice((1, 2, 4)) if self.mixed else usual
            lease = draw.choice((1.0, 2.0)) * self.lease if self.mixed else self.lease
            interval = None if draw.random() < 0.8 else lease * draw.uniform(0.1, 0.95)
            semaphores.append(
                self.kind(
                    process.backend,
                    name,
                    None if self.slotted else limit,
                    slots=list(range(limit)) if self.slotted else None,
                    **self._options_of_keys(limit, lease),
                    lease=lease,
                    refresh_interval=interval,
                    timeout=draw.choice((None, 2 * lease)),
                    max_waiters=None if draw.random() < 0.8 else draw.randint(0, 3),
                    cancel_on_loss=draw.random() < 0.8,
                )
            )
        self._make_actors(process)

    def _options_of_keys(self, limit: int, lease: float) -> dict[str, Any]:
        """What only a semaphore with keys takes. Clients declare other limits for a key."""
        draw, options = self.random, dict[str, Any]()
        if draw.random() < LONGEST_HOLDS:
            options["max_hold"] = draw.uniform(1.2, 4.0) * lease
        if "+" not in self.mode:
            return options
        of_key = {key: draw.choice((1, 1, 2, max(limit, 1))) for key in KEYS}
        if self.mode == "fair+keys" or draw.random() < 0.5:
            options["key_limit"] = of_key.__getitem__
        if self.mode == "fair+share":
            weights = {key: draw.choice((1.0, 1.0, 2.5)) for key in KEYS}
            patience = draw.choice((None, 0.0, 0.1, 3600.0))
            options |= {"share": True, "weight": weights.__getitem__, "patience": patience}
        if draw.random() < 0.1:
            options["max_waiters_per_key"] = draw.randint(0, 2)
        return options

    def _make_actors(self, process: Process) -> None:
        draw, semaphores = self.random, self.semaphores[process]
        actors = draw.choice((1, 2, 2, 4, 8))
        for _ in range(actors):
            actor = Actor(self.common, process, semaphores)
            attempts = draw.randint(1, 15 if self.eager else 5)
            self.attempts += attempts
            self.workers.append((process, process.start(actor.run(attempts))))

    # -- the run

    def run(self) -> Outcome:
        world = self.world
        if self.calm or self.gusty:
            world.after(LOOK, self._look_for_idle_permits)
        else:
            world.storm(self.storm, self.lease)
        if not world.run(self.storm, self._all_done):
            self._heal()
            patience = 30 + 20 * self.lease + sum(5.0 for _ in self.workers)
            work = self.attempts * self.common.habits.work
            if not world.run(patience + work, self._all_done):
                stuck = [str(attempt) for attempt in self.holdings.pending]
                self._unless_violated(f"not everybody was served: {stuck}")
        else:
            self._heal()
        world.note("everybody is done")
        self.common.over = True
        world.run(QUIET)
        self._see_that_nothing_is_taken()
        world.run(60 + 4 * self.lease, self._idle)
        self._see_that_nothing_is_left()
        if not world.violations:
            self.holdings.judge_longest_holds()
        self.world.end()
        return Outcome(
            world.seed,
            self.world.operations,
            sum(judge.grants for judge in self.world.judges.values()),
            world.now,
            world.faults,
            Counter(self.holdings.ends),
            world.violations,
            world.trace,
            sorted([*world.struck, *self.common.begun]),
        )

    def _unless_violated(self, otherwise: str) -> None:
        if not self.world.violations:
            self.world.violated(otherwise)

    def _all_done(self) -> bool:
        return all(task.done() for process, task in self.workers if process.alive)

    def _heal(self) -> None:
        self.world.heal()
        chosen = next(process for process in self.world.processes if process.alive)
        if not (self.calm or self.gusty):
            self.world.after(LOOK, self._look_for_idle_permits)
        self._lifter = chosen.start(self._lift_limits(chosen))

    async def _lift_limits(self, process: Process) -> None:
        """A paused semaphore serves nobody, and is not to blame."""
        while not self.common.over:
            for semaphore in self.semaphores[process]:
                limits = self.world.orders[semaphore.name].limits
                for what in [what for what, limit in limits.items() if limit is not None]:
                    await self.common.order(process, semaphore, what)
            await asyncio.sleep(0.5)

    def _look_for_idle_permits(self) -> None:
        """A free permit and somebody alive who waits for it find each other, in bounded time."""
        world = self.world
        for name, look in self.world.looks.items():
            judge = self.world.judge(name)
            since, grants = self._idle_since.get(name, (world.now, -1))
            waiting = self._could_be_served(name, look) if not self.common.over else []
            if not waiting or grants != judge.grants:  # somebody got one meanwhile
                since = world.now
            self._idle_since[name] = since, judge.grants
            if world.now - since > self._prompt(waiting):
                world.violated(f"there is room in {name} since {since:.3f} for {waiting[0]}")
        if not self.common.over:
            world.after(LOOK, self._look_for_idle_permits)

    def _could_be_served(self, name: str, look: Look) -> list[Attempt]:
        """Those who wait, where there is room for one whose turn it is."""
        pending = [a for a in self.holdings.pending if a.semaphore.name == name and a.waits]
        if not pending or look.has_lost_facts:
            return []
        room = look.room()
        if (room.ramps or not look.passes_over) and any(look.eligible(room)):
            return pending if forgotten(look) else []
        asked = ((attempt, attempt.request) for attempt in pending)
        return [a for a, request in asked if room.fits(request) and room.fits_key(request)]

    def _prompt(self, waiting: Sequence[Attempt]) -> float:
        """Seconds in which they meet: at once, or by a heartbeat where a message may be lost."""
        prompt = BROKEN if self.gusty else PROMPT + 10 * self.world.trip
        if not (self.calm or self.gusty):
            prompt += RECOVERY
        # Nobody is told when a patience ends, which may be the turn of a lighter one.
        elif self.mode != "fair+share" and not any(a.process.no_push for a in waiting):
            return prompt
        return prompt + heartbeat_interval(2 * self.lease)

    # -- what is left

    def _survives(self, identity: str) -> bool:
        """Whether its process lives, and was not closed while the server was unreachable."""
        owner = self.world.owners.get(identity.partition(".")[0])
        closed = self.holdings.unruly and owner in self.holdings.closed
        return owner is not None and owner.alive and not closed

    def _see_that_nothing_is_taken(self) -> None:
        """Everybody has let go: the server knows, long before any lease ends."""
        for name, look in self.world.looks.items():
            judge = self.world.judge(name)
            excused = judge.revived | judge.detached
            for identity, held in look.live.items():
                if self._survives(identity) and identity not in excused:
                    self._unless_violated(f"{name}: {identity} is still held ({held})")
            # What is of a process that counts as dead is dropped by the next call.
            waiting = [w.id for w in look.line if w.alive_until > look.now]
            for identity in waiting:
                if self._survives(identity) and identity not in judge.revived_line:
                    self._unless_violated(f"{name}: {identity} is still in line")

    def _idle(self) -> bool:
        return all(process.idle for process in self.world.processes)

    def _see_that_nothing_is_left(self) -> None:
        for process, task in self.workers:
            if process.alive and task.done() and (error := task.exception()) is not None:
                self.world.violated(f"a worker of {process.name} ended with {error!r}", error)
        for process in self.world.processes:
            if not process.alive:
                continue
            if not process.idle:
                timer = process.loop.next_timer()
                tasks = len(process.loop.tasks)
                self._unless_violated(
                    f"{process.name} does not come to rest: {tasks} tasks, {timer}"
                )
            for remote in process.remotes:
                kept = (
                    *(remote.requests, remote.leases, remote.waiting, remote.undo),
                    *(remote.refreshes, remote.releases),
                )
                left = [len(things) for things in kept]
                with running(process.loop):  # by whose clock a back-off may be over
                    active = remote.active
                if active or any(left):
                    self._unless_violated(f"{process.name} keeps {left} for {remote.address.name}")
            if any(link.open for link in process.links):
                self._unless_violated(f"{process.name} keeps a link")


_OFTEN = {"refuse": 0.2, "hang": 0.2, "overtaken": 0.3, "unanswered": 0.3}
_UNKIND = (*_OFTEN, "lose reply", "lose", "run late", "half-open", "press")

# -- running a seed

COLLECT = 25  # schedules between two collections of garbage
_count = itertools.count(1)


def _now() -> float:
    return asyncio.get_running_loop().time()


def simulate(
    seed: int, *, traced: bool = False, only: Sequence[Operation] | None = None
) -> Outcome:
    """Run the schedule of *seed*: the same each time; or *only* some of its operations."""
    collecting = gc.isenabled()
    gc.disable()  # what is collected when would depend on what ran before
    if next(_count) % COLLECT == 0:
        gc.collect()
    try:
        schedule = Schedule(seed, traced=traced, only=only)
        with in_place(_now, random.Random(seed + 1), schedule.world):
            return schedule.run()
    finally:
        if collecting:
            gc.enable()


def explain(outcome: Outcome) -> Violation:
    """What to raise for a run that broke a promise: how, shortened, and how to see it again."""

    def same(some: Sequence[Operation]) -> Sequence[Operation] | None:
        again = simulate(outcome.seed, only=some)
        found = bool(again.violations) and kind_of(again.violations[0]) == wanted
        return again.done if found else None

    wanted = kind_of(outcome.violations[0])
    done = shortened(outcome.done, same, TRIES)
    again = simulate(outcome.seed, traced=True, only=done)
    lines = [f"operations: {len(done)} of {len(outcome.done)} operations are enough:"]
    lines += [f"{moment:12.6f} {' '.join(map(str, event))}" for moment, event in done]
    seed = f"REDSEM_SEED={outcome.seed} repeats it"
    return Violation("\n".join([*outcome.violations, *lines, *(again.trace or []), seed]))
