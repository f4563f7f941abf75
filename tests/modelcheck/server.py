"""The executable specification as the server of the checker.

`FairModel` and `ZsetModel`, with which the scripts are compared call by call on real servers, run
every command here too. Their fields are thawed from a small frozen state, with the clock at one
fixed moment and all times relative to it, and frozen again. Fencing tokens are renumbered, since
nobody decides by them; that they grow is checked when they are drawn.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from redsem_async._keys import Address, permit_id
from redsem_async._protocol import (
    Abandon,
    Acquire,
    Call,
    Granted,
    Heartbeat,
    Hint,
    Holding,
    Introduction,
    Message,
    Reap,
    Refresh,
    Release,
    Reply,
    Request,
)
from redsem_async.testing._model import (
    FairModel,
    Held,
    Model,
    Party,
    Reordered,
    Tell,
    Waiter,
    ZsetModel,
)

from .scenario import Scenario
from .wire import TOKEN, Answer, Command, Said, Told

NOW_MS = 1_000_000_000
NOW_US = NOW_MS * 1000
HUBS = ("a" * 32, "b" * 32, "c" * 32)
NAMES = "ABC"
NOBODY = "0" * 32
WHO = Introduction("somebody")

Place = tuple[int, int, int]  # client, number, permits


class Kept(NamedTuple):
    """The server's state, frozen. Milliseconds are what is left from now."""

    holders: tuple[tuple[int, int, int, int], ...]  # client, number, left, permits
    parties: tuple[tuple[int, int, bool, int] | None, ...]  # alive for, mark, gone, waits
    line: tuple[Place, ...]  # in zset, a turn stands for the number
    ended: tuple[int, ...]  # for each client, a bit for each number released or abandoned


class Ran(NamedTuple):
    """What running a command led to."""

    state: int
    said: Said
    told: tuple[tuple[int, Told], ...]
    wrong: str | None


class Server:
    """States are numbers here: each is kept once, and each step from it is taken once."""

    def __init__(self, scenario: Scenario, make: Callable[[Tell], Model]) -> None:
        self._scenario = scenario
        self._model = make(self._tell)
        self._address = Address(scenario.mode, "redsem", "checked", "local")
        self._heard = 0
        self._told: list[tuple[int, Told]] = []
        self._states: list[Kept] = []
        self._known: dict[Kept, int] = {}
        self._ran: dict[tuple[int, int, Command, int], Ran] = {}
        self._later: dict[int, int] = {}
        self._swapped: dict[tuple[int, int, int], int] = {}
        self._served: dict[tuple[int, int], bool] = {}
        self._holders: dict[int, dict[tuple[int, int], int]] = {}
        nothing = Kept((), (None,) * 3, (), (0,) * 3)
        self.start = self._number(nothing)

    def __getitem__(self, state: int) -> Kept:
        return self._states[state]

    @property
    def size(self) -> int:
        """How many states of the server were met."""
        return len(self._states)

    def run(self, state: int, client: int, command: Command, heard: int) -> Ran:
        """Carry *command* out. *heard* has a bit for each client that a message reaches."""
        key = state, client, command, heard
        ran = self._ran.get(key)
        if ran is None:
            ran = self._ran[key] = self._run(*key)
        return ran

    def tick(self, state: int) -> int:
        """A tick passes."""
        later = self._later.get(state)
        if later is None:
            ms, kept = self._scenario.tick_ms, self._states[state]
            later = self._later[state] = self._number(
                kept._replace(
                    holders=tuple((c, n, max(0, left - ms), p) for c, n, left, p in kept.holders),
                    parties=tuple(p and (max(0, p[0] - ms), *p[1:]) for p in kept.parties),
                )
            )
        return later

    def swap(self, state: int, one: int, other: int) -> int:
        """The same with two clients' names exchanged."""
        key = state, one, other
        swapped = self._swapped.get(key)
        if swapped is None:
            kept = self._states[state]
            to = {client: client for client in range(3)} | {one: other, other: one}
            swapped = self._swapped[key] = self._number(
                Kept(
                    tuple(sorted((to[c], n, left, p) for c, n, left, p in kept.holders)),
                    tuple(kept.parties[to[client]] for client in range(3)),
                    self._in_order((to[c], n, p) for c, n, p in kept.line),
                    tuple(kept.ended[to[client]] for client in range(3)),
                )
            )
        return swapped

    def _in_order(self, line: Iterable[Place]) -> tuple[Place, ...]:
        """Those who share a turn stand in the order of their names."""
        if self._scenario.mode == "fair":
            return tuple(line)
        return tuple(sorted(line, key=lambda place: (place[1], place[0])))

    def holders(self, state: int) -> dict[tuple[int, int], int]:
        """Live permits, by client and number, and the ticks left of each."""
        holders = self._holders.get(state)
        if holders is None:
            ms = self._scenario.tick_ms
            holders = self._holders[state] = {
                (client, number): -(-left // ms)
                for client, number, left, _ in self._states[state].holders
                if left > 0
            }
        return holders

    def would_serve(self, state: int, heard: int) -> bool:
        """Whether a waiter would get something if anybody called now."""
        key = state, heard
        served = self._served.get(key)
        if served is None:
            self._thaw(self._states[state], heard)
            self._model.run(self._address, Reap(), NOBODY, NOW_US)
            served = self._served[key] = any(told.grants for _, told in self._told)
        return served

    def room(self, state: int, limit: int) -> int:
        """How many permits are free under *limit*."""
        return limit - sum(p for _, _, left, p in self._states[state].holders if left > 0)

    # -- carrying out

    def _run(self, state: int, client: int, command: Command, heard: int) -> Ran:
        before = self._states[state]
        self._thaw(before, heard)
        model, last = self._model, self._model.last
        try:
            reply = model.run(self._address, self._call(client, command), HUBS[client], NOW_US)
        except Reordered:
            return Ran(state, Said(command, again=True), (), None)
        assert isinstance(reply, Reply)
        wrong = self._wrong(before, last)
        after = self._freeze(self._ended(before, client, command))
        return Ran(self._number(after), self._said(command, reply), tuple(self._told), wrong)

    def _call(self, client: int, command: Command) -> Call:
        terms = self._scenario.terms(client)
        lease_ms = terms.lease * self._scenario.tick_ms
        requests = [
            Request(number, lease_ms, terms.limit, permits)
            for number, permits in zip(command.numbers, command.weights, strict=False)
        ]
        match command.kind:
            case "acquire":
                unusual = {r.number: (r.permits, True) for r in requests if r.permits > 1}
                return Acquire(
                    command.numbers,
                    lease_ms,
                    terms.limit,
                    unusual,
                    after=command.after,
                    waits=command.waits,
                    hinted=command.hinted,
                    introduction=WHO,
                )
            case "release":
                return Release(HUBS[client], command.numbers, command.keep)
            case "refresh":
                return Refresh(command.numbers, lease_ms)
            case "abandon":
                return Abandon(requests)
            case "beat":
                waits, hinted = command.waits, command.hinted
                return Heartbeat(lease_ms, requests, terms.limit, waits, hinted, WHO)
            case _:
                raise AssertionError(command)

    def _said(self, command: Command, reply: Reply) -> Said:
        ms = self._scenario.tick_ms
        answers: list[Answer] = []
        for answer in reply.answers:
            if isinstance(answer, Holding):
                answers.append(Holding(0, answer.left_ms // ms))
            else:
                answers.append(min(answer, TOKEN) if command.kind == "acquire" else answer)
        return Said(
            command._replace(age=0),
            tuple(answers),
            None if reply.next_ms is None else math.ceil(reply.next_ms / ms),
            reply.waiting,
            tuple(number for number, _ in reply.granted),
            reply.hinted,
            reply.room,
        )

    def _tell(self, owner: str, message: Message) -> int:
        client = HUBS.index(owner)
        if not self._heard >> client & 1:
            return 0
        if isinstance(message, Granted):
            ms = self._scenario.tick_ms
            grants = tuple((number, h.left_ms // ms) for number, h in message.grants)
            self._told.append((client, Told(grants)))
        elif isinstance(message, Hint):
            self._told.append((client, Told(permits=message.permits)))
        return 1

    # -- freezing

    def _number(self, kept: Kept) -> int:
        number = self._known.get(kept)
        if number is None:
            number = self._known[kept] = len(self._states)
            self._states.append(kept)
        return number

    def _thaw(self, kept: Kept, heard: int) -> None:
        self._heard = heard
        self._told = []
        model = self._model
        model.kind = self._address.kind
        model.holders = {
            permit_id(HUBS[client], number): Held(NOW_MS + left, NOW_US - 1, permits)
            for client, number, left, permits in kept.holders
        }
        model.parties = {
            HUBS[client]: Party(
                NOW_MS + party[0] if party[0] else 0,
                party[1],
                WHO.who,
                gone=party[2],
                waits=party[3],
            )
            for client, party in enumerate(kept.parties)
            if party is not None
        }
        if isinstance(model, FairModel):
            model.line = []
            for turn, (client, number, permits) in enumerate(kept.line):
                terms = self._scenario.terms(client)
                lease_ms = terms.lease * self._scenario.tick_ms
                request = Request(number, lease_ms, terms.limit, permits)
                model.line.append(Waiter(HUBS[client], request, NOW_US + turn))
        elif isinstance(model, ZsetModel):
            model.line = {HUBS[client]: NOW_US + turn for client, turn, _ in kept.line}
        model.last = NOW_US + len(kept.line)

    def _freeze(self, ended: tuple[int, ...]) -> Kept:
        model = self._model
        holders: list[tuple[int, int, int, int]] = []
        for identity, held in model.holders.items():
            left = max(0, held.expiry_ms - NOW_MS)
            holders.append((*_place(identity), left, held.permits))
        parties: list[tuple[int, int, bool, int] | None] = [None] * 3
        for hub, party in model.parties.items():
            if hub in HUBS:
                alive_for = max(0, party.alive_until - NOW_MS)
                parties[HUBS.index(hub)] = (alive_for, party.mark, party.gone, party.waits)
        return Kept(tuple(sorted(holders)), tuple(parties), self._line(), ended)

    def _line(self) -> tuple[Place, ...]:
        model = self._model
        if isinstance(model, FairModel):
            return tuple(
                (HUBS.index(w.hub), w.request.number, w.request.permits) for w in model.line
            )
        assert isinstance(model, ZsetModel)
        ranks = {turn: rank for rank, turn in enumerate(sorted(set(model.line.values())))}
        line = sorted((turn, hub) for hub, turn in model.line.items())
        return tuple((HUBS.index(hub), ranks[turn], 0) for turn, hub in line)

    # -- what must hold of every step

    def _ended(self, before: Kept, client: int, command: Command) -> tuple[int, ...]:
        ended = list(before.ended)
        if command.kind in {"release", "abandon"}:
            for number in command.numbers:
                ended[client] |= 1 << number
        return tuple(ended)

    def _wrong(self, before: Kept, last: int) -> str | None:
        model = self._model
        held_before = {(client, number) for client, number, left, _ in before.holders if left > 0}
        lined_before = {(client, number) for client, number, _ in before.line}
        grants: list[tuple[int, int, int, int]] = []  # token, client, number, permits
        used = 0
        for identity, held in model.holders.items():
            place = _place(identity)
            if held.expiry_ms > NOW_MS:
                if place in held_before and held.token == NOW_US - 1:
                    used += held.permits
                else:
                    grants.append((held.token, *place, held.permits))
        line = self._line() if isinstance(model, FairModel) else ()
        waiting = {(client, number) for client, number, _ in line}
        for client, number in [(c, n) for _, c, n, _ in grants] + sorted(waiting - lined_before):
            if before.ended[client] >> number & 1:
                return f"{NAMES[client]}'s {number} was given back, and is back"
        if waiting & {(c, n) for _, c, n, _ in grants} or waiting & held_before & self._live():
            return "an id is held and waiting"
        for token, client, number, permits in sorted(grants):
            if token <= last:
                return f"the token of {NAMES[client]}'s {number} does not grow"
            last = token
            used += permits
            limit = self._scenario.limits[client]
            if used > limit:
                return (
                    f"{used} permits are held once {NAMES[client]}'s {number} is granted,"
                    f" which was asked for under a limit of {limit}"
                )
        return self._overtaken(before, [(c, n) for _, c, n, _ in sorted(grants)], line)

    def _live(self) -> set[tuple[int, int]]:
        holders = self._model.holders.items()
        return {_place(identity) for identity, held in holders if held.expiry_ms > NOW_MS}

    def _overtaken(
        self, before: Kept, grants: list[tuple[int, int]], line: tuple[Place, ...]
    ) -> str | None:
        """A grant to one who asked later than somebody who could have had it, and waits on."""
        if not grants:
            return None
        turns = {(client, number): turn for turn, (client, number, _) in enumerate(before.line)}
        latest = max(turns.get(place, len(turns)) for place in grants)
        for client, number, permits in line:
            party = self._model.parties[HUBS[client]]
            turn = turns.get((client, number), len(turns))
            alive = party.alive_until > NOW_MS and not party.gone
            if alive and permits <= self._scenario.limits[client] and turn < latest:
                return f"{NAMES[client]}'s {number} was first in line, and others were granted"
        return None


def _place(identity: str) -> tuple[int, int]:
    """Client and number of a permit's id."""
    hub, _, number = identity.partition(".")
    return HUBS.index(hub), int(number)
