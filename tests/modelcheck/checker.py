"""The exhaustive search: every order of events within a scenario's bounds.

Breadth first, so that a counterexample is as short as can be. A state is four small numbers (the
server, three clients) and what is left of the budget; every step of a part is taken once and then
looked up.

After every step: no more permits live than the request that was granted last allows, no id back
after it was given back, nobody overtaken, tokens growing (`server.py`), and whoever trusts a
permit has it at the server, for at least as long. From every state, with faults off: everybody
who waits gets an answer, nothing is held at the end that nobody knows of, and all comes back.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from redsem_async.testing._model import FairModel, Model, Tell, ZsetModel

from .client import DEAD, HELD, RUNS, STOPPED, WAITING, Client
from .scenario import Budget, Event, Scenario
from .server import NAMES, Server
from .wire import Said, Told

State = tuple[int, tuple[int, ...], Budget]
Make = Callable[[Tell], Model]

LONGEST_WAY_OUT = 60  # ticks after which a request will never end
LONGEST_ROUND = 150  # steps in a row in which no time passes


class Wrong(Exception):
    """A property does not hold."""


class View(NamedTuple):
    """What a search asks about a client again and again."""

    events: tuple[tuple[str, int, str | None], ...]  # what, which, and from what budget
    trusted: tuple[tuple[int, int], ...]  # number and ticks
    hears: bool
    runs: bool
    stopped: bool
    going: bool
    must_link: bool
    receives: bool
    due: bool
    releases: tuple[int, ...]
    waits: tuple[int, ...]  # permits that are waited for, in the server's eyes too
    knows: frozenset[int]
    holds_or_says: bool


@dataclass
class Outcome:
    """What a search came to."""

    scenario: Scenario
    states: int = 0
    steps: int = 0
    server_states: int = 0
    complete: bool = False
    wrong: str | None = None
    trace: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        found = f"{self.wrong}\n  " + "\n  ".join(self.trace) if self.wrong else "nothing wrong"
        bounded = "" if self.complete or self.wrong else " (not all of them)"
        return (
            f"{self.scenario.name} ({self.scenario.mode}): {self.states:,} states{bounded},"
            f" {self.steps:,} steps, {self.server_states:,} of the server: {found}"
        )


class Search:
    """One scenario, explored."""

    def __init__(self, scenario: Scenario, make: Make | None = None) -> None:
        self._scenario = scenario
        standard: Make = FairModel if scenario.mode == "fair" else ZsetModel
        self._server = Server(scenario, make or standard)
        self._clients: list[Client] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._views: list[View] = []
        self._stepped: dict[tuple[int, str, int], int] = {}
        self._delivered: dict[tuple[int, Said | Told], int] = {}
        self._good: set[tuple[int, tuple[int, ...]]] = set()
        self._parents: dict[State, tuple[State, Event] | None] = {}
        self._steps = 0
        self._way: list[Event] = []  # taken from the last state looked at, with faults off

    def run(self, most: int = 10_000_000) -> Outcome:
        """Explore up to *most* states, or to the first that is wrong."""
        outcome = Outcome(self._scenario)
        start = self._first = self._start()
        parents = self._parents = {start: None}
        todo = deque([start])
        state = start
        way = self._way
        try:
            while todo and len(parents) < most:
                state = todo.popleft()
                self._check_prompt(state)
                self._check_way_out(state)
                for event, budget in self._events(state):
                    self._steps += 1
                    way[:] = [event]
                    after = self._canonical(self._after(state, event, budget))
                    if after not in parents:
                        self._check_trust(after)
                        parents[after] = state, event
                        todo.append(after)
            outcome.complete = not todo
        except Wrong as wrong:
            outcome.wrong = str(wrong)
            outcome.trace = self._trace(state, way)
        outcome.states, outcome.steps = len(parents), self._steps
        outcome.server_states = self._server.size
        return outcome

    def _start(self) -> State:
        clients = [
            Client(self._scenario.terms(i), program)
            for i, program in enumerate(self._scenario.programs)
        ]
        numbers = tuple(self._number(client) for client in clients)
        state = self._server.start, numbers, self._scenario.budget
        for event in self._scenario.opening:
            state = self._after(state, event, self._scenario.budget)
        return state

    # -- states

    def _number(self, client: Client) -> int:
        key = client.frozen()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._clients)
            self._clients.append(client)
            self._views.append(view(client))
        return number

    def _canonical(self, state: State) -> State:
        """Of states that differ in the names of twins, one."""
        for one, other in self._scenario.twins:
            state = self._swapped(state, one, other)
        return state

    def _swapped(self, state: State, one: int, other: int) -> State:
        server, clients, budget = state
        if clients[one] <= clients[other]:
            return state
        swapped = list(clients)
        swapped[one], swapped[other] = clients[other], clients[one]
        return self._server.swap(server, one, other), tuple(swapped), budget

    def _step(self, number: int, what: str, which: int) -> int:
        """A step of one client's own."""
        key = number, what, which
        after = self._stepped.get(key)
        if after is None:
            client = self._clients[number].copy()
            act(client, what, which)
            client.flush()
            after = self._stepped[key] = self._number(client)
        return after

    def _deliver(self, number: int, item: Said | Told) -> int:
        """Something was written to one client by the server."""
        key = number, item
        after = self._delivered.get(key)
        if after is None:
            client = self._clients[number].copy()
            if isinstance(item, Said):
                age = client.going[0].age
                item = item._replace(command=item.command._replace(age=age))
                client.going = client.going[1:]
                client.heard, client.lingers = True, False
            if client.heard:  # or else nobody reads it
                client.coming += (item,)
            after = self._delivered[key] = self._number(client)
        return after

    # -- steps

    def _events(self, state: State) -> Iterator[tuple[Event, Budget]]:
        _, clients, budget = state
        for i, number in enumerate(clients):
            for what, which, cost in self._views[number].events:
                if cost is None:
                    yield (what, i, which), budget
                elif left := getattr(budget, cost):
                    less = budget._replace(**{cost: left - 1})
                    if what.startswith("half_open"):
                        if not budget.half_open:
                            continue
                        less = less._replace(half_open=budget.half_open - 1)
                    yield (what, i, which), less
        slow = not self._scenario.prompt or not self._busy(clients)
        if budget.ticks and slow and clients != self._first[1]:
            yield ("tick", 0, 0), budget._replace(ticks=budget.ticks - 1)

    def _after(self, state: State, event: Event, budget: Budget) -> State:
        server, clients, _ = state
        what, who, which = event
        if what == "tick":
            later = tuple(self._step(number, what, 0) for number in clients)
            return self._server.tick(server), later, budget
        if what in {"run", "run late"}:
            return self._run(server, list(clients), who, late=what == "run late", budget=budget)
        changed = list(clients)
        changed[who] = self._step(clients[who], what, which)
        return server, tuple(changed), budget

    def _run(
        self, server: int, clients: list[int], who: int, *, late: bool, budget: Budget
    ) -> State:
        client = self._clients[clients[who]]
        command = client.late[0] if late else client.going[0]._replace(age=0)
        heard = sum(1 << i for i, number in enumerate(clients) if self._views[number].hears)
        ran = self._server.run(server, who, command, heard)
        if ran.wrong is not None:
            raise Wrong(ran.wrong)
        if late:
            clients[who] = self._step(clients[who], "ran late", 0)
        else:
            clients[who] = self._deliver(clients[who], ran.said)
        for owner, told in ran.told:
            clients[owner] = self._deliver(clients[owner], told)
        return ran.state, tuple(clients), budget

    # -- properties

    def _check_trust(self, state: State) -> None:
        server, clients, _ = state
        for who, number in enumerate(clients):
            for permit, ticks in self._views[number].trusted:
                if self._server.holders(server).get((who, permit), 0) < ticks:
                    raise Wrong(f"{NAMES[who]} trusts its {permit} for longer than it is held")

    def _check_prompt(self, state: State) -> None:
        """Nothing is on its way, a waiter could be served, and it waits for the slow heartbeat."""
        self._way.clear()
        if not self._scenario.prompt or not self._forgotten(state):
            return
        raise Wrong("a waiter could be served, and nothing but the slow heartbeat will see to it")

    def _forgotten(self, state: State) -> bool:
        server, clients, _ = state
        views = [self._views[number] for number in clients]
        if self._busy(clients) or not any(v.runs and v.waits for v in views):
            return False
        if self._scenario.mode == "fair":
            heard = sum(1 << i for i, v in enumerate(views) if v.hears)
            return self._server.would_serve(server, heard)
        return any(
            self._server.room(server, self._scenario.limits[who]) >= permits
            for who, v in enumerate(views)
            if v.runs
            for permits in v.waits[:1]
        )

    def _busy(self, clients: tuple[int, ...]) -> bool:
        """Something is on its way, or about to be."""
        views = [self._views[number] for number in clients]
        return any(v.going or v.must_link or v.due or v.receives for v in views)

    def _check_way_out(self, state: State) -> None:
        """With faults off, everything ends; by one schedule, which is to any as good as a hint."""
        server, clients, budget = state
        good, path, ticks, quiet = self._good, [(server, clients)], 0, False
        since_tick = 0
        self._way.clear()
        while path[-1] not in good:
            event = self._way_out(state)
            if event is None:
                break
            if event[0] == "tick":
                if not quiet:
                    self._check_known(state)
                quiet = True
                ticks += 1
                since_tick = 0
                if ticks > LONGEST_WAY_OUT:
                    raise Wrong("a request never ends, or a permit never comes back")
            self._way.append(event)
            state = self._after(state, event, budget)
            self._steps += 1
            since_tick += 1
            if since_tick > LONGEST_ROUND:
                raise Wrong("commands beget commands without end")
            path.append(state[:2])
        good.update(path)

    def _way_out(self, state: State) -> Event | None:
        server, clients, _ = state
        views = [self._views[number] for number in clients]
        for who, v in enumerate(views):
            if v.stopped:
                return "go on", who, 0
            if v.must_link:
                return "link", who, 0
        for who, v in enumerate(views):
            if v.going:
                return "run", who, 0
            if v.receives:
                return "receive", who, 0
        for who, v in enumerate(views):
            if v.due:
                return "beat", who, 0
        for who, v in enumerate(views):
            if v.releases:
                return "release", who, v.releases[0]
        if self._server.holders(server) or any(v.runs and v.holds_or_says for v in views):
            return "tick", 0, 0
        return None

    def _check_known(self, state: State) -> None:
        """Nothing is on its way: every permit is one that its client knows of."""
        server, clients, _ = state
        for who, number in self._server.holders(server):
            v = self._views[clients[who]]
            if v.runs and number not in v.knows:
                raise Wrong(f"nobody knows of {NAMES[who]}'s {number}, which is held")

    # -- telling

    def _trace(self, state: State, way: list[Event]) -> list[str]:
        """How *state* came about, and what was done from there on."""
        before: list[tuple[State, Event]] = []
        at = state
        while (parent := self._parents[at]) is not None:
            before.append(parent)
            at = parent[0]
        lines: list[str] = []
        names = list(NAMES)
        for at, event in reversed(before):
            lines.append(self._line(at, event, names))
            after = self._after(at, event, at[2])
            for one, other in self._scenario.twins:
                swapped = self._swapped(after, one, other)
                if swapped != after:
                    names[one], names[other] = names[other], names[one]
                    after = swapped
        for event in way:
            lines.append(self._line(state, event, names))
            if event is not way[-1]:
                state = self._after(state, event, state[2])
        return lines

    def _line(self, state: State, event: Event, names: list[str]) -> str:
        what, who, which = event
        name = names[who]
        client = self._clients[state[1][who]]
        match what:
            case "tick":
                return "a tick passes"
            case "run" | "run late":
                late = what == "run late"
                command = client.late[0] if late else client.going[0]._replace(age=0)
                heard = sum(1 << i for i, n in enumerate(state[1]) if self._views[n].hears)
                ran = self._server.run(state[0], who, command, heard)
                told = "".join(f"; {names[owner]} is told {item}" for owner, item in ran.told)
                how = (
                    "late, from a closed connection"
                    if late
                    else f"and answers {_answer(ran.said)}"
                )
                return f"the server runs {name}'s '{command}' {how}{told}"
            case "receive":
                item = client.coming[0]
                if isinstance(item, Told):
                    return f"{name} reads: {item}"
                return f"{name} reads the answer to '{item.command._replace(age=0)}'"
            case "begin":
                return f"{name} asks for {client.program[client.begun]}"
            case "cancel" | "release" | "refresh":
                return f"{name} {'refreshe' if what == 'refresh' else what}s request {which}"
            case _:
                return f"{name}: {_SAYINGS[what]}"


_SAYINGS = {
    "beat": "its timer fires",
    "link": "connects again",
    "cut": "its connection breaks",
    "half_open cut": "its connection breaks, which the server does not notice",
    "die": "is killed",
    "half_open die": "is gone with its host, which the server does not notice",
    "stop": "is stopped",
    "go on": "goes on",
    "lose message": "a message to it is lost",
}


def _answer(said: Said) -> str:
    words = {1: "granted", 0: "wait", -1: "gone", -2: "full"}
    if said.command.kind != "acquire":
        words = {}
    answers = ", ".join(
        words.get(a, str(a)) if isinstance(a, int) else f"held, {a.left_ms} ticks left"
        for a in said.answers
    )
    granted = "".join(f", granted {number}" for number in said.granted)
    moment = "" if said.next_in is None else f", next in {said.next_in}"
    hinted = f", {said.hinted} hinted" if said.hinted else ""
    return f"[{answers}{granted}{moment}{hinted}]"


def act(client: Client, what: str, which: int) -> None:
    """Take a step."""
    match what:
        case "tick":
            client.tick()
        case "begin":
            client.begin()
        case "cancel":
            client.cancel(which)
        case "release":
            client.release(which)
        case "refresh":
            client.refresh(which)
        case "receive":
            client.receive()
        case "beat":
            client.beat()
        case "link":
            client.link()
        case "cut" | "half_open cut":
            client.cut(noticed=what == "cut")
        case "die" | "half_open die":
            client.die(noticed=what == "die")
        case "stop":
            client.life = STOPPED
        case "go on":
            client.go_on()
        case "lose message":
            client.lose_message()
        case "ran late":
            client.late = client.late[1:]
        case _:
            raise AssertionError(what)


def view(client: Client) -> View:
    """What can happen to *client*, and what is asked about it."""
    runs, stopped = client.life == RUNS, client.life == STOPPED
    due = runs and bool(client.waiting) and (client.moment == 0 or client.beat_at == 0)
    must_link = runs and not client.linked and client.active
    events: list[tuple[str, int, str | None]] = []
    if client.going:
        events.append(("run", 0, None))
    if client.late:
        events.append(("run late", 0, None))
    settled = tuple(c.key for c in client.claims if c.state == HELD and not c.confirming)
    pending = [c for c in client.claims if c.state in {"new", "sent", WAITING} or c.confirming]
    if runs:
        if client.coming:
            events.append(("receive", 0, None))
            if isinstance(client.coming[0], Told):
                events.append(("lose message", 0, "drops"))
        if due:
            events.append(("beat", 0, None))
        if must_link:
            events.append(("link", 0, None))
        if client.begun < len(client.program):
            events.append(("begin", 0, None))
        events += [("cancel", claim.key, "cancels") for claim in pending]
        for key in settled:
            events.append(("release", key, None))
            if client.claim(key).trust < client.terms.lease and not client.renewals:
                events.append(("refresh", key, "refreshes"))
    if stopped:
        events.append(("go on", 0, None))
    elif runs and client.claims:
        events.append(("stop", 0, "stops"))
        events.append(("die", 0, "kills"))
        events.append(("half_open die", 0, "kills"))
    if client.life != DEAD and client.linked and (client.going or client.coming or client.claims):
        events.append(("cut", 0, "cuts"))
        events.append(("half_open cut", 0, "cuts"))
    waits = tuple(client.claim(key).permits for key in client.waiting)
    return View(
        events=tuple(events),
        trusted=tuple((c.number, c.trust) for c in client.claims if c.state == HELD and c.trust),
        hears=client.heard or client.lingers,
        runs=runs,
        stopped=stopped,
        going=bool(client.going),
        must_link=must_link,
        receives=runs and bool(client.coming),
        due=due,
        releases=settled if runs else (),
        waits=waits,
        knows=frozenset(c.number for c in client.claims),
        holds_or_says=bool(client.claims or client.returned or client.leaving),
    )
