"""The network between processes and the server: in order on each link, and otherwise unkind."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from redsem_async._core.keys import permit_id
from redsem_async._protocol.backend import AnyReply, Link, Listener, OneNode
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import (
    Adopt,
    AnyOperation,
    Delete,
    Detach,
    Refresh,
    SetLimit,
    StartBackOff,
)
from redsem_async._protocol.pushes import Deleted, Granted, Push, Revoked
from redsem_async._protocol.replies import Reply
from tests.worlds.loop import SimulatedLoop
from tests.worlds.world import BaseLink

from .world import Process, World

if TYPE_CHECKING:
    from .holdings import Holdings
    from .server import Server


# Calls that change something, and would change it twice.
ONCE = Adopt, StartBackOff, Delete, Detach, SetLimit
RETURNED = 0.5  # seconds after which a grant that nobody wants was given back
PATIENCE = 3.3  # seconds without an answer, after which every link is given up


@dataclass
class Weather:
    """How unkind the network is. Probabilities are for each command or attempt."""

    trip: float = 0.001  # seconds one way, about
    lose_reply: float = 0.0
    lose_command: float = 0.0
    run_late: float = 0.0
    overtaken: float = 0.0  # that something which is done once runs late, from a closed link
    unanswered: float = 0.0  # that nothing comes back any more, once it has run
    half_open: float = 0.0
    refuse: float = 0.0
    hang: float = 0.0
    back_pressure: float = 0.0
    longest_delay: float = 5.0  # seconds that a command may be on its way on a closed link


class Network:
    """Every link there is and was."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.links: list[SimulatedLink] = []
        self.opened = 0
        self.refusing_until = 0.0
        self.server: Server
        self.holdings: Holdings
        self.reached: set[str] = set()  # hubs that a message of this call is sure to reach
        self.notified: set[str] = set()  # and those that the server believes it to
        self._unanswered: list[tuple[SimulatedLoop, asyncio.Future[None]]] = []

    def trip(self) -> float:
        return self.weather.trip * self.world.random.uniform(0.2, 2.0)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.world.random.random() < probability

    def publish(self, prefix: str, owner: str, message: Push) -> int:
        """Publish *message* to a hub. Returns how many connections it went to."""
        receivers = [link for link in self.links if link.subscribed(prefix, owner)]
        for link in receivers:
            link.deliver(partial(link.notified, prefix, message))
            self.notified.add(owner)
            if link.sound:
                self.reached.add(owner)
        self.world.note("publish", owner[:4], message, "->", len(receivers))
        return len(receivers)

    def heal(self) -> None:
        """From now on nothing goes wrong any more; what is under way arrives."""
        self.weather = Weather(self.weather.trip)
        self.refusing_until = 0.0
        for link in list(self.links):
            link.heal()
        for loop, attempt in self._unanswered:
            loop.call_soon(_arrive, attempt)
        self._unanswered.clear()

    async def answered_again(self, loop: SimulatedLoop) -> None:
        attempt: asyncio.Future[None] = loop.create_future()
        self._unanswered.append((loop, attempt))
        await attempt


class SimulatedBackend(OneNode):
    """What a process has for a client: the way to the server."""

    place = "the simulated server"

    def __init__(self, network: Network, process: Process) -> None:
        self.network = network
        self.process = process

    async def connect(self, listener: Listener) -> Link:
        network, world = self.network, self.network.world
        loop = self.process.loop
        if network.chance(network.weather.hang):
            world.fault("connection not answered")
            await network.answered_again(loop)
        trip: asyncio.Future[None] = loop.create_future()
        world.after(2 * network.trip(), partial(_wake, loop, trip))
        await trip
        if world.now < network.refusing_until or network.chance(network.weather.refuse):
            world.fault("connection refused")
            raise ConnectionRefusedError("the simulated server refuses connections")
        return SimulatedLink(network, self.process, listener)


def _wake(loop: SimulatedLoop, trip: "asyncio.Future[None]") -> None:
    loop.call_soon(_arrive, trip)


def _arrive(trip: "asyncio.Future[None]") -> None:
    if not trip.done():
        trip.set_result(None)


class SimulatedLink(BaseLink[Process]):
    """A connection with two ends, which may have different opinions of it."""

    def __init__(self, network: Network, process: Process, listener: Listener) -> None:
        super().__init__(network.world, process, listener)
        self.open_there = True  # as the server sees it
        network.opened += 1
        self.serial = network.opened
        self._network = network
        self._world = network.world
        self._subscribed: set[tuple[str, str]] = set()
        self._inbox: deque[tuple[AnyOperation, str, float]] = deque()  # and when it was sent
        self._unanswered: deque[float] = deque()  # when commands were sent
        self._upward = 0.0  # when the last command arrives
        self._downward = 0.0
        self._blocked_until = 0.0  # nothing arrives at the server before
        self._up_cut = False  # nothing arrives there any more
        self._down_cut = False
        self._paused = False
        network.links.append(self)
        if process.no_push:
            self._world.fault("link without messages")
            listener.push_unavailable(PermissionError("the simulated server denies subscriptions"))

    # -- the process's end

    @property
    def writable(self) -> bool:
        return self.open and not self._paused

    def send(self, commands: Sequence[AnyOperation], now: float) -> None:
        super().send(commands, now)
        if self._network.chance(self._network.weather.back_pressure):
            self._world.fault("back-pressure")
            self._paused = True
            self._world.after(5 * self._network.trip(), self._relieve)

    def written(self, command: AnyOperation, hub: str) -> None:
        self.process.hubs.add(hub)
        self._unanswered.append(self._world.now)
        self._upward = max(self._upward, self._world.now + self._network.trip())
        self._world.at(self._upward, partial(self._arrived, command, hub, self._world.now))

    def closed(self) -> None:
        self._world.at(max(self._upward, self._world.now) + self._network.trip(), self._hung_up)

    def _relieve(self) -> None:
        self.process.loop.call_soon(self._writable_again)

    def _writable_again(self) -> None:
        self._paused = False
        if self.open:
            self.listener.resume_writing()

    # -- the server's end

    def subscribed(self, prefix: str, owner: str) -> bool:
        """Whether messages to the hub *owner* go out here, as the server believes."""
        return self.open_there and (prefix, owner) in self._subscribed

    @property
    def sound(self) -> bool:
        return self.open and not self._down_cut and self.process.alive

    def deliver(self, arrival: Callable[[], None]) -> None:
        if not self._down_cut:
            self._downward = max(self._downward, self._world.now + self._network.trip())
            self._world.at(self._downward, partial(self._delivered, arrival))

    def _delivered(self, arrival: Callable[[], None]) -> None:
        if self.open and self.process.alive:
            self.process.loop.call_soon(self._hand_over, arrival)

    def _hand_over(self, arrival: Callable[[], None]) -> None:
        if self.open:
            arrival()

    def notified(self, prefix: str, message: Push) -> None:
        """Hand a message over, and see what becomes of what it grants, or takes."""
        super().notified(prefix, message)
        holdings, hub = self._network.holdings, self.listener.hub_id
        match message:
            case Granted():
                stalled = self.process.stalled_so_far
                for number, _ in message.grants:
                    check = partial(self._see_whose, message.name, permit_id(hub, number), stalled)
                    self._world.after(RETURNED, check)
            case Revoked():
                for number in message.numbers:
                    holdings.gone(permit_id(hub, number))
            case Deleted():
                holdings.deleted(self.process, message.name)
            case _:
                pass

    def _see_whose(self, name: str, identity: str, stalled: float) -> None:
        """What a process was granted and nobody holds there was given back, if that could be."""
        server = self._network.server
        possible = self.sound and self.process.stalled_so_far == stalled
        if possible and server.answered_since(self._world.now - RETURNED):
            unclaimed = identity not in self._network.holdings.ids
            if unclaimed and server.holds(name, identity):
                self._world.violated(f"{self.process.name} keeps {identity} for nobody")

    def _arrived(self, command: AnyOperation, hub: str, sent: float) -> None:
        self._inbox.append((command, hub, sent))
        self.read()

    def read(self) -> None:
        while self._inbox:
            wait = max(self._blocked_until, self._network.server.stalled_until)
            if wait > self._world.now and not self._up_cut:
                self._world.at(wait, self.read)
                return
            self._serve(*self._inbox[0])

    def _serve(self, command: AnyOperation, hub: str, sent: float) -> None:
        network, world, server = self._network, self._world, self._network.server
        self._inbox.popleft()
        if self._up_cut:
            world.fault("lost command")
            return
        if self.open:
            weather = network.weather
            if network.chance(weather.lose_command):
                world.fault("lost command")
                self.lose_commands()
                return
            once = isinstance(command, ONCE)
            if network.chance(weather.overtaken if once else weather.run_late):
                self._inbox.appendleft((command, hub, sent))
                self.delay_commands()
                return
            if network.chance(weather.half_open):
                self.half_open()
                if self._up_cut:
                    return
        late = not self.open or self._down_cut
        if late:
            world.fault("command of a closed link" if not self.open else "unheard reply")
        if not self.process.no_push:
            self._subscribed.add((command.semaphore.address.prefix, hub))
        answer = server.run(command.semaphore.address, command, hub, self, sent)
        if isinstance(command, ONCE) and network.chance(network.weather.unanswered):
            self.half_open()
        self.deliver(partial(self._answered, command, hub, answer))
        if self.open and network.chance(network.weather.lose_reply):
            world.fault("lost reply")
            self._down_cut = True
            self._break()

    def _answered(self, command: AnyOperation, hub: str, answer: AnyReply | CommandError) -> None:
        self._unanswered.popleft()
        self.answered(command, answer)
        if isinstance(command, Refresh) and isinstance(answer, Reply):
            for number, held in zip(command.numbers, answer.answers, strict=True):
                if not held:
                    self._network.holdings.gone(permit_id(hub, number))
        if isinstance(answer, CommandError) and answer.kind is ErrorKind.READ_ONLY:
            self._fail(answer.error)

    def _hung_up(self) -> None:
        if self._blocked_until > self._world.now and not self._up_cut:
            self._world.at(self._blocked_until, self._hung_up)
        else:
            self.open_there = False

    # -- trouble

    def _fail(self, error: Exception) -> None:
        if self.open:
            self.abort()
            self.listener.connection_lost(error)

    def _break(self, *, server_knows: bool = True) -> None:
        """The process learns that the link is gone; the server sooner or later, too."""
        self._reset()
        delay = self._network.trip() if server_knows else self._world.random.uniform(0, 20)
        self._world.after(delay, self._forgotten)

    def _reset(self) -> None:
        error = ConnectionResetError("the simulated network broke the link")
        moment = max(self._downward, self._world.now + self._network.trip())
        self._world.at(moment, partial(self._delivered, partial(self._fail, error)))
        self._down_cut = True

    def _forgotten(self) -> None:
        self.open_there = False

    def lose_commands(self) -> None:
        self._up_cut = True
        self._break(server_knows=self._world.random.random() < 0.5)

    def delay_commands(self) -> None:
        """Break the link; what is on its way to the server will run there, later."""
        most = self._network.weather.longest_delay
        self._blocked_until = self._world.now + self._world.random.uniform(0.0, most)
        self._reset()

    def heal(self) -> None:
        """What was blocked passes; what is broken is known to be."""
        self._blocked_until = 0.0
        self.read()
        if self._down_cut and self.open:
            self._break()

    def half_open(self) -> None:
        """From now on nothing arrives over it, and no error says so."""
        world = self._world
        if not self.open or self._down_cut:
            return
        world.fault("half-open link")
        self._down_cut = True
        self._watch_silence()
        form = world.random.randrange(3)
        if form == 0:  # nor at the server, which does not know for long
            self._up_cut = True
            world.after(world.random.uniform(0, 20), self._forgotten)
        elif form == 1:  # what is sent arrives late
            self._blocked_until = world.now + world.random.uniform(0, 5)

    def _see_that_it_was_noticed(self, stalled: float) -> None:
        """A process that ran, and received nothing for so long, has given the link up."""
        process, world = self.process, self._world
        if not (self.open and process.alive):
            return
        ran = process.stalled_so_far == stalled
        if ran and self._unanswered and self._unanswered[0] < world.now - PATIENCE:
            world.violated(f"{process.name} still believes in a link that is silent")
        self._watch_silence()

    def _watch_silence(self) -> None:
        stalled = self.process.stalled_so_far
        self._world.after(PATIENCE, partial(self._see_that_it_was_noticed, stalled))

    def cut(self) -> None:
        if self.open and not self._down_cut:
            self._world.fault("broken link")
            if self._world.random.random() < 0.5:
                self.lose_commands()
            else:
                self.delay_commands()
