"""Random calls of three hubs, as clients make them and as a network may bring them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import redsem_async._protocol.operations as op
from redsem_async._core.config import Clock
from redsem_async._core.keys import Mode
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.hub_info import NO_PUSH, UNCHANGED, UNCOUNTED, HubInfo
from tests.scripts.in_memory import HUBS, SLOTS, InMemory
from tests.worlds.look import requests_of

LEASES_MS = (10_000, 10_000, 30_000, 90_000)
MESSAGES = (0, NO_PUSH, UNCOUNTED)
KEYS = (None, "a", "a", "a0", "b")
# In us of two rates, with their bursts: mostly of one that lets all go, above the burst, nothing.
USUAL, UNUSUAL = ":9/3000+1/9", (":900/3000+9/9", ":40000/3000+1/9", ":0/3000+0/9")
COSTS = (*[USUAL] * 20, *UNUSUAL)
SETTLED = "-9+0", "3000+1", "-40000+-9"


class RandomCalls(InMemory):
    """A semaphore in memory, and what its hubs do."""

    def __init__(self, mode: Mode, seed: int, clock: Clock = "server") -> None:
        super().__init__(mode, clock)
        self.seed = seed
        self.draw = draw = random.Random(seed)
        self.limit = draw.choice((1, 2, 2, 3, 5)) * (
            3 if self.address.keyed or self.address.rated else 1
        )
        self.wild = draw.choice((0.03, 0.1, 0.3))  # how often something unusual happens
        self.overloads = 0.5 * (seed % 3 == 0)  # likewise an upstream refuses work
        self.calls = 0
        self.numbers = dict.fromkeys(HUBS, 0)
        self.requests: dict[str, list[op.QueuedRequest]] = {hub: [] for hub in HUBS}
        self.sent: list[tuple[str, op.AnyOperation]] = []

    def make(self, hub: str, call: op.AnyOperation) -> None:
        self.sent = [*self.sent[-20:], (hub, call)]
        said = self.answer(hub, call)
        refused = isinstance(said, CommandError) and said.kind
        assert refused in (False, ErrorKind.RETRY_NOW, ErrorKind.SLOTS_MISMATCH), said
        if refused and isinstance(call, op.Acquire):
            self.answer(hub, replace(call, hub_info=self.info(hub, 0)))

    def info(self, hub: str, messages: int, before: Sequence[int] = ()) -> HubInfo:
        """What a hub says of itself *before* it sends these numbers."""
        return HubInfo("x", messages, min(before, default=self.numbers[hub] + 1) - 1)

    def walk(self, steps: int) -> Self:
        """Take so many random steps."""
        try:
            for _ in range(steps):
                self.step()
        except AssertionError as wrong:
            wrong.add_note(f"seed {self.seed}, calls: {self.sent}")
            raise
        return self

    def is_wild(self) -> bool:
        return self.draw.random() < self.wild

    def step(self) -> None:
        hub = self.draw.choice(HUBS)
        if self.is_wild():
            self.draw.choice((self.make_another, self.make_another, self.go, self.evict))(hub)
        else:
            steps = (self.ask, self.give_back, self.wait, self.meet_overload)
            self.draw.choices(steps, (3, 3, 1, self.overloads))[0](hub)

    def ask(self, hub: str) -> None:
        draw, wild, first = self.draw, self.is_wild(), self.numbers[hub] + 1
        numbers = range(first, first + draw.choice((1, 1, 1, 2, 3)))
        self.numbers[hub] = numbers[-1]
        drawn = {number: self.options() for number in numbers}
        options = {n: asked for n, asked in drawn.items() if asked != op.DEFAULT_OPTIONS}
        slots = SLOTS[: self.limit] if self.address.slotted else None
        limit = draw.choice((0, 0, 1, 9)) if self.is_wild() and not slots else self.limit
        call = op.Acquire(numbers, draw.choice(LEASES_MS), limit, options, slots=slots)
        self.requests[hub] += requests_of(call)
        if wild:
            bound, after = draw.choice((None, 2)), draw.choice((0, 0, numbers[-1]))
            info = draw.choice((UNCHANGED, *(self.info(hub, how) for how in MESSAGES)))
            call = replace(call, max_waiters=bound, after=after, hub_info=info)
        self.make(hub, call)

    def options(self) -> op.RequestOptions:
        draw, asked = self.draw, op.DEFAULT_OPTIONS
        if self.is_wild():
            asked = op.RequestOptions(draw.choice((1, 2, 3)), draw.random() < 0.7)
            asked = asked._replace(ahead_ms=draw.choice((0, 2000)) if self.address.fair else 0)
        if self.address.rated:
            asked = asked._replace(costs=draw.choice(COSTS))
        key = draw.choice(KEYS) if self.address.keyed else None
        if key is None:
            return asked
        terms = op.KeyTerms(key, draw.choice((None, 1, 2)), draw.choice((1.0, 1.0, 2.5)), 2000)
        return asked._replace(key=terms)

    def give_back(self, caller: str) -> None:
        draw, wild = self.draw, self.is_wild()
        hub = next((hub for hub in draw.sample(HUBS, 3) if self.held_by(hub)), caller)
        held = self.held_by(hub)
        numbers = held[: draw.choice((1, 1, 2))]
        if wild:
            numbers = draw.choices([*held, self.numbers[hub], self.numbers[hub] + 1], k=2)
        else:
            caller = hub
        line = {waiter.id for waiter in self.look.line}
        own = [each for each in self.requests[caller] if f"{caller}.{each.number}" in line]
        first = () if self.address.fair else own[: len(numbers)]
        hold_ms = 7 if self.is_wild() else None
        settled = {
            n: draw.choice(SETTLED) for n in numbers if self.address.rated and self.is_wild()
        }
        if numbers:
            self.make(caller, op.Release(hub, numbers, hold_ms, bool(own), first, settled))

    def make_another(self, hub: str) -> None:
        draw, requests, held = self.draw, self.requests[hub], self.held_by(hub)
        self.calls += 1
        limit: Any = draw.choice((None, None, None, 0, 1, 2, 6, "pause", "resume", "resume"))
        calls: list[tuple[str, op.AnyOperation]] = [
            (hub, op.Heartbeat(10_000, requests[-3:], UNCHANGED)),
            (hub, op.Heartbeat(10_000, requests[-3:], self.info(hub, draw.choice(MESSAGES)))),
            (hub, op.Reap()),
            (HUBS[0], op.SetLimit(limit, self.calls)),
            (HUBS[0], op.StartBackOff(draw.choice((0, 900, 20_000)), None, self.calls)),
            *[(hub, op.Abandon([each])) for each in requests[-1:]],
            *[(hub, op.Refresh(held, draw.choice(LEASES_MS)))] * bool(held),
        ]
        if self.address.keyed:
            calls += [(HUBS[0], op.SetLimit(draw.choice((None, 0, 1)), self.calls, "a"))]
        late = self.sent[-5:]
        made = draw.randrange(len(calls) + len(late))
        if made < len(calls):
            self.make(*calls[made])
        else:
            self.answer(*late[made - len(calls)])  # a command arrives once more

    def meet_overload(self, _: str) -> None:
        """An upstream refuses the work of a permit, or an operator knows that it would."""
        self.calls += 1
        token = self.draw.choice((None, *(permit.token for permit in self.look.live.values())))
        key = self.draw.choice(KEYS) if self.address.keyed else None
        pause_ms = self.draw.choice((0, 0, 900))
        self.make(HUBS[0], op.StartBackOff(pause_ms, token, self.calls, key))

    def wait(self, _: str) -> None:
        usual, rare = (1, 40, 1000, 5000, 11_000), (200_000, -3000)
        self.pass_time(self.draw.choice(rare if self.is_wild() else usual))

    def go(self, hub: str) -> None:
        """A process stops receiving messages, or is back."""
        self.present ^= {hub}

    def evict(self, _: str) -> None:
        """Some keys are lost, mostly one."""
        kinds = [key.rpartition(":")[2] for key in self.address.keys]
        often = *kinds[:3] * 3, *kinds
        self.lose(*self.draw.choices(often, k=self.draw.choice((1, 1, 2, 3, 4))))
        if not self.kept["meta"]:  # which says that these have run
            self.sent = [each for each in self.sent if not introduces(each[1])]


def introduces(call: op.AnyOperation) -> bool:
    """Whether a hub that is not known is known by this acquire."""
    return isinstance(call, op.Acquire) and call.hub_info != UNCHANGED
