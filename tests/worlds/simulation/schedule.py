"""One schedule: what a seed decides, how it runs, and what is left when it is over."""

import asyncio
import gc
import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redsem_async import AnySemaphore, FairSemaphore, Rate, Semaphore, SemaphoreError
from redsem_async._core.keys import Mode, mode_with
from redsem_async._core.lease import heartbeat_interval
from tests.worlds.judge import forgotten
from tests.worlds.look import Look
from tests.worlds.loop import running
from tests.worlds.process import Process
from tests.worlds.stand_ins import in_place, uncollected

from .actors import KEYS, Actor
from .books import Attempt
from .walk import RECOVERY, Walk

QUIET = 1.6  # seconds after which nothing is on its way any more, once all is healed
BROKEN = 1.2  # seconds in which a free permit finds a waiter, where links break meanwhile
LOOK = 0.02  # seconds between two looks at that
KEYED = 0.6  # of the schedules in fair mode
SLOTTED = 0.3  # of all, where all clients declare the same limit
RATED = 0.3  # of those in fair mode
LONGEST_HOLDS = 0.15  # of the semaphores in a process
COLLECT = 25  # schedules between two collections of garbage
_OFTEN = {"refuse": 0.2, "hang": 0.2, "overtaken": 0.3, "unanswered": 0.3}
_UNKIND = (*_OFTEN, "lose reply", "lose", "run late", "half-open", "press")
_count = itertools.count(1)


class Schedule:
    """Everything of one run, drawn from a seed.

    Attributes:
        calm: nothing goes wrong, but that tasks are cancelled.
        gusty: and links break, which is put right at once.
        rest: seconds between two attempts, at most.
        work: seconds that a permit is held, at most.
        detached: ids that may be adopted, by the semaphore's name.
    """

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.world = world = Walk(seed, traced=traced)
        self.random = draw = world.random
        temper = draw.random()
        self.calm, self.gusty = temper < 0.25, 0.25 <= temper < 0.4
        world.unruly = not self.calm
        self.lease = draw.choice((0.3, 1.0, 1.0, 3.0, 10.0))
        self.storm = draw.uniform(0.5, 4.0) * max(1.0, min(self.lease, 3.0))
        self.actors = itertools.count()
        self.detached = defaultdict[str, list[str]](list)
        self.over = False
        self._draw_weather()
        self._draw_habits()
        self.kind = draw.choice((Semaphore, FairSemaphore))
        self.mode: Mode = "zset" if self.kind is Semaphore else "fair"
        self.keyed = self.mode == "fair" and draw.random() < KEYED
        if self.keyed:
            self.mode = draw.choice(("fair+keys", "fair+keys", "fair+share"))
        self.rated = self.mode != "zset" and draw.random() < RATED
        self.mode = mode_with(self.mode, rates=self.rated)
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

    def _draw_weather(self) -> None:
        draw, world = self.random, self.world
        world.trip = draw.choice((0.0001, 0.001, 0.01))
        world.prompt += 10 * world.trip
        if self.gusty:
            world.chances |= {"lose reply": 0.03, "lose": 0.03}
        elif not self.calm:
            world.longest_delay = draw.choice((0.5, 5.0))
            strength = draw.choice((0.003, 0.02, 0.06))
            kinds = draw.sample(_UNKIND, draw.randint(0, 4))
            world.chances |= {kind: _OFTEN.get(kind, strength) for kind in kinds}

    def _draw_habits(self) -> None:
        draw, rough = self.random, not (self.calm or self.gusty)
        actions = ["enter", "guard", "guard", "guard", "bare", "try"]
        unusual = ["drop", "detach", "adopt", "look", *["foreign", "delete", "close"] * rough]
        for action in draw.sample(unusual, draw.choice((0, 0, 1, 2))):
            actions += ["adopt", "adopt", "adopt", "detach"] if action == "adopt" else [action]
        actions += ["limit"] * (draw.random() < 0.2)
        theme = draw.random()
        lengths = 0.0, 0.02, 0.3
        if theme < 0.15:  # permits are handed over
            actions = ["bare", "bare", "detach", "detach", "detach", "adopt", "adopt"]
            lengths = 0.3 * self.lease, 1.5 * self.lease, 1.5 * self.lease
            if rough:
                chance = draw.choice((0.0, 0.2))
                self.world.chances |= {"unanswered": chance, "overtaken": chance}
        elif theme < 0.22 and rough:
            actions = ["bare", "guard", "limit", "limit", "limit", "delete"]
        self.overloads = draw.choice((0.0, 0.0, 0.0, 0.1))
        self.actions = [*actions, *["back_off"] * (self.overloads > 0)]
        short = self.lease * 0.2
        timeouts: list[tuple[float | None, ...]] = [
            (None,),
            (None, 0.0, short, 2 * self.lease),
            (short / 4, short),
        ]
        self.timeouts = draw.choice(timeouts)
        self.rest = draw.choice((0.0, 0.01, 0.5))
        self.work = draw.choice((*lengths, 1.5 * self.lease))
        self.heaviest = draw.choice((1, 1, 3))
        self.cancelled = draw.choice((0.0, 0.1, 0.4))  # probability
        self.blocked = draw.choice((0.0, 0.0, 0.1)) * rough

    def _make_process(self, number: int) -> None:
        draw = self.random
        rate, offset = 1 + draw.uniform(-0.004, 0.004), 1000.0 * (1 + number)
        process = Process(self.world, rate=rate, offset=offset)
        process.no_push = draw.random() < 0.05
        semaphores = self.semaphores[process] = []
        for name, usual in self.limits.items():
            limit = draw.choice((1, 2, 4)) if self.mixed else usual
            lease = draw.choice((1.0, 2.0)) * self.lease if self.mixed else self.lease
            options = self._options_of_keys(limit, lease)
            options |= {"slots": range(limit)} if self.slotted else {"limit": limit}
            if self.rated:
                options["rate"] = Rate(draw.choice((2, 20, 200)), burst=draw.choice((None, 1, 5)))
            semaphore = self.kind(
                process.backend,
                name,
                **options,
                lease=lease,
                refresh_interval=None if draw.random() < 0.8 else lease * draw.uniform(0.1, 0.95),
                timeout=draw.choice((None, 2 * lease)),
                max_waiters=None if draw.random() < 0.8 else draw.randint(0, 3),
                cancel_on_loss=draw.random() < 0.8,
            )
            semaphores.append(semaphore)
        for _ in range(draw.choice((1, 2, 2, 4, 8))):
            attempts = draw.randint(1, 15 if self.eager else 5)
            self.attempts += attempts
            actor = Actor(self, process, semaphores)
            self.workers.append((process, process.start(actor.run(attempts))))

    def _options_of_keys(self, limit: int, lease: float) -> dict[str, Any]:
        """What only a semaphore with keys takes. Clients declare other limits for a key."""
        draw, options = self.random, dict[str, Any]()
        if draw.random() < LONGEST_HOLDS:
            options["max_hold"] = draw.uniform(1.2, 4.0) * lease
        if not self.keyed:
            return options
        of_key = {key: draw.choice((1, 1, 2, max(limit, 1))) for key in KEYS}
        if "+keys" in self.mode or draw.random() < 0.5:
            options["key_limit"] = of_key.__getitem__
        if "+share" in self.mode:
            weights = {key: draw.choice((1.0, 1.0, 2.5)) for key in KEYS}
            patience = draw.choice((None, 0.0, 0.1, 3600.0))
            options |= {"share": True, "weight": weights.__getitem__, "patience": patience}
        if draw.random() < 0.1:
            options["max_waiters_per_key"] = draw.randint(0, 2)
        return options

    # -- the run

    def run(self) -> Walk:
        world = self.world
        if self.calm or self.gusty:
            world.after(LOOK, self._look_for_idle_permits)
        else:
            world.storm(self.storm, self.lease)
        if self.rated:
            world.after(LOOK, self._look_at_heads)
        done = world.run(self.storm, self._all_done)
        self._heal()
        if not done:
            patience = 30 + 20 * self.lease + 5.0 * len(self.workers)
            patience += 2.0 * self.attempts * self.rated
            if not world.run(patience + self.attempts * self.work, self._all_done):
                stuck = [str(a) for books in world.books.values() for a in books.pending]
                self._unless_violated(f"not everybody was served: {stuck}")
        world.note("everybody is done")
        self.over = True
        world.run(QUIET)
        self._see_that_nothing_is_taken()
        world.run(60 + 4 * self.lease, lambda: all(process.idle for process in world.processes))
        self._see_that_nothing_is_left()
        for books in world.books.values() if not world.violations else ():
            books.judge_longest_holds()
        world.end()
        return world

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
        while not self.over:
            for semaphore in self.semaphores[process]:
                limits = self.world.orders[semaphore.name].limits
                for what in [what for what, limit in limits.items() if limit is not None]:
                    await self.order(process, semaphore, what)
            await asyncio.sleep(0.5)

    async def order(
        self, process: Process, semaphore: AnySemaphore, what: str, limit: int | None = None
    ) -> None:
        """Set a limit, of all or of a key, or delete."""
        with suppress(SemaphoreError):
            await self.world.orders[semaphore.name].carry_out(process, semaphore, what, limit)
            self.world.fault(f"order of a {what.partition(' ')[0]}")

    def _look_for_idle_permits(self) -> None:
        """A free permit and somebody alive who waits for it find each other, in bounded time."""
        world = self.world
        if self.over:
            return
        for name, look in world.looks.items():
            grants = world.books[name].grants
            since, before = self._idle_since.get(name, (world.now, -1))
            waiting = self._could_be_served(name, look)
            if not waiting or before != grants:  # somebody got one meanwhile
                since = world.now
            self._idle_since[name] = since, grants
            if world.now - since > self._prompt(waiting):
                world.violated(f"there is room in {name} since {since:.3f} for {waiting[0]}")
        world.after(LOOK, self._look_for_idle_permits)

    def _look_at_heads(self) -> None:
        if not self.over:
            self.world.wait_until(self.world.now)
            self.world.after(LOOK, self._look_at_heads)

    def _could_be_served(self, name: str, look: Look) -> list[Attempt]:
        """Those who wait, where there is room for one whose turn it is."""
        pending = [attempt for attempt in self.world.books[name].pending if attempt.waits]
        if not pending or look.has_lost_facts:
            return []
        if look.rates:  # which change with time
            look = replace(look, now_us=self.world.server_us_at(self.world.now))
        room = look.room()
        if (room.ramps or not look.passes_over) and any(look.eligible(room)):
            return pending if forgotten(look) else []
        asked = ((attempt, attempt.request) for attempt in pending)
        return [a for a, request in asked if room.fits(request) and room.fits_key(request)]

    def _prompt(self, waiting: Sequence[Attempt]) -> float:
        """Seconds in which they meet: at once, or by a heartbeat where a message may be lost."""
        prompt = BROKEN if self.gusty else self.world.prompt
        if not (self.calm or self.gusty):
            prompt += RECOVERY
        # Nobody is told when a patience ends, which may be the turn of a lighter one.
        elif "+share" not in self.mode and not any(a.process.no_push for a in waiting):
            return prompt
        return prompt + heartbeat_interval(2 * self.lease)

    # -- what is left

    def _survives(self, identity: str) -> bool:
        """Whether its process lives, and was not closed while the server was unreachable."""
        owner = self.world.owners.get(identity.partition(".")[0])
        closed = self.world.unruly and owner in self.world.closed
        return owner is not None and owner.alive and not closed

    def _see_that_nothing_is_taken(self) -> None:
        """Everybody has let go: the server knows, long before any lease ends."""
        for name, look in self.world.looks.items():
            # What is of a process that counts as dead is dropped by the next call.
            waiting = {w.id: w for w in look.line if w.alive_until > look.now}
            for identity, what in (look.live | waiting).items():
                if self._survives(identity) and identity not in self.world.books[name].excused:
                    self._unless_violated(f"{name}: {identity} is still there: {what}")

    def _see_that_nothing_is_left(self) -> None:
        for process, task in self.workers:
            if process.alive and task.done() and (error := task.exception()) is not None:
                self.world.violated(f"a worker of {process.name} ended with {error!r}", error)
        for process in [process for process in self.world.processes if process.alive]:
            if not process.idle:
                left = f"{len(process.loop.tasks)} tasks, {process.loop.next_timer()}"
                self._unless_violated(f"{process.name} does not come to rest: {left}")
            for remote in process.remotes:
                kept = (
                    *(remote.requests, remote.leases, remote.waiting, remote.undo),
                    *(remote.refreshes, remote.releases),
                )
                with running(process.loop):  # by whose clock a back-off may be over
                    if remote.active or any(kept):
                        name = remote.address.name
                        self._unless_violated(f"{process.name} keeps {kept} for {name}")
            if any(link.open for link in process.links):
                self._unless_violated(f"{process.name} keeps a link")


def _now() -> float:
    return asyncio.get_running_loop().time()


def simulate(seed: int, *, traced: bool = False) -> Walk:
    """Run the schedule of *seed*: the same each time."""
    if next(_count) % COLLECT == 0:
        gc.collect()
    schedule = Schedule(seed, traced=traced)
    with uncollected(), in_place(_now, random.Random(seed + 1), schedule.world):
        return schedule.run()


def explain(world: Walk) -> AssertionError:
    """What to raise for a run that broke a promise: how, and how to see it again."""
    trace = simulate(world.seed, traced=True).trace or ()
    return AssertionError(
        "\n".join([*world.violations, *trace, f"REDSEM_SEED={world.seed} repeats it"])
    )
