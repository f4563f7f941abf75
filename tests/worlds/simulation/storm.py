"""Faults that strike at moments that are drawn, until all is healed."""

from functools import partial

from .holdings import Holdings
from .network import Network
from .server import Server
from .world import Process, World

_STORMS = (
    "stall process",
    "kill process",
    "stall server",
    "busy",
    "demoted",
    "full",
    "refreshes refused",
    "scripts forgotten",
    "flush",
    "refuse",
    "cut links",
    "half-open",
)


class Storm:
    """What goes wrong in one run, beside the weather."""

    def __init__(
        self, world: World, network: Network, server: Server, holdings: Holdings, lease: float
    ) -> None:
        self.over = False
        self._world = world
        self._random = world.random
        self._network = network
        self._server = server
        self._holdings = holdings
        self._lease = lease

    def plan(self, seconds: float) -> None:
        """Draw what strikes in so many seconds."""
        draw, world = self._random, self._world
        kinds = draw.sample(_STORMS, draw.randint(0, 4))
        for kind in kinds:
            for _ in range(draw.choice((1, 1, 2, 4))):
                world.at(draw.random() * seconds, partial(self._strike, kind))

    def _strike(self, kind: str) -> None:
        if self.over:
            return
        server = self._server
        match kind:
            case "stall process":
                if process := self.some_process():
                    process.stall(self._up_to(1.5))
            case "kill process":
                self._kill_process()
            case "stall server":
                server.stall(self._up_to(1.5))
            case "busy":
                server.busy_until = self._world.now + self._up_to(1)
            case "demoted":
                server.demoted_until = self._world.now + self._up_to(1)
            case "full":
                self._holdings.out_of_memory = True
                server.full_until = self._world.now + self._up_to(1)
            case "refreshes refused":
                server.strict_until = self._world.now + self._up_to(1.5)
            case "scripts forgotten":
                server.forgetful = 0.3
            case "flush":
                self._cut_links(0.3)  # what runs late finds nothing of what was there
                server.flush()
            case "refuse":
                self._network.refusing_until = self._world.now + self._up_to(2)
                self._cut_links(1)
            case "cut links":
                self._cut_links(0.5)
            case _:
                for link in list(self._network.links):
                    if self._random.random() < 0.5:
                        link.half_open()

    def _up_to(self, leases: float) -> float:
        """Seconds."""
        return self._random.random() * leases * self._lease

    def _cut_links(self, share: float) -> None:
        for link in list(self._network.links):
            if share == 1 or self._random.random() < share:
                link.cut()

    def some_process(self) -> Process | None:
        alive = [process for process in self._world.processes if process.alive]
        return self._random.choice(alive) if alive else None

    def _kill_process(self) -> None:
        alive = [process for process in self._world.processes if process.alive]
        if len(alive) < 2:
            return
        process = self._random.choice(alive)
        process.kill()
        self._holdings.killed(process)
        for link in self._network.links:
            if link.process is process:
                if self._random.random() < 0.7:
                    link.abort()
                else:
                    link.half_open()  # the whole machine went
