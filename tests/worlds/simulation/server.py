"""The server: the scripts in memory, run in virtual time and watched by a judge."""

import math

from redsem_async._core.keys import Address
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Acquire, AnyOperation, Refresh
from tests.worlds.look import Look
from tests.worlds.server import ScriptServer

from .judge import Around, Judge
from .network import ONCE, Network, SimulatedLink
from .world import World

FLUSH_TIME = 0.001  # seconds
WINDOW = 0.5  # seconds
MOST_IDLE_CALLS = 300  # in so many seconds


class Server:
    """Runs calls one at a time."""

    def __init__(self, world: World, network: Network) -> None:
        self.stalled_until = 0.0
        self.busy_until = 0.0
        self.demoted_until = 0.0
        self.full_until = 0.0
        self.strict_until = 0.0
        self.slotted = False  # permits have slots
        self.forgetful = 0.0  # probability that scripts are forgotten before a call
        self._forgot_at = -math.inf  # and what was sent before names scripts that are not there
        self.operations = 0
        self.judges: dict[str, Judge] = {}
        self._troubled_at = -math.inf
        self._idle_since = 0.0
        self._idle_calls = 0
        self._world = world
        self._network = network
        self._scripts = ScriptServer(network.publish)
        self._ran: dict[tuple[str, int], int] = {}  # acquires, by the link that they came on
        network.server = self

    def judge(self, name: str) -> Judge:
        if name not in self.judges:
            self.judges[name] = Judge(self._world, name)
        return self.judges[name]

    def run(
        self, address: Address, call: AnyOperation, hub: str, link: SimulatedLink, sent: float
    ) -> AnyReply | CommandError:
        """Carry out what was *sent* then, unless in trouble, and have the judge look at it."""
        world = self._world
        if (trouble := self._in_trouble(call, sent)) is not None:
            world.fault(f"answer {trouble.name}")
            self._troubled_at = world.now
            return CommandError(trouble, RuntimeError(f"{trouble.name} (simulated)"))
        self.operations += 1
        if isinstance(call, Acquire):
            self._look_for_duplicates(call, hub, link)
        elif isinstance(call, ONCE) and not link.open:
            world.fault(f"late {call.script}")
        judge = self.judge(address.name)
        self._network.notified.clear()
        self._network.reached.clear()
        before, answer, after = self._scripts.run(address, call, hub, world.server_us)
        if isinstance(call, Acquire) and not isinstance(answer, CommandError):
            judge.arrived(call, hub, link.process)
        world.note("run", link.process.name, hub[:4], address.name, call, "->", answer)
        if _unreachable(before, hub) > _unreachable(after, hub):
            world.fault("hub back in its place")
        network = self._network
        around = Around(frozenset(network.notified), frozenset(network.reached), not link.open)
        trusted = network.holdings.trusted(address.name)
        if judge.ran(before, call, hub, answer, after, around, trusted):
            self._idle_since, self._idle_calls = world.now, 0
        self._see_that_nothing_spins()
        return answer

    def looks(self) -> dict[str, Look]:
        """How each semaphore stands."""
        addresses, now_us = self._scripts.addresses, self._world.server_us
        return {name: self._scripts.look(address, now_us) for name, address in addresses.items()}

    def _see_that_nothing_spins(self) -> None:
        """Calls that change nothing may be made now and then, and not as fast as it goes."""
        if self._world.now - self._idle_since > WINDOW:
            self._idle_since, self._idle_calls = self._world.now, 0
        self._idle_calls += 1
        if self._idle_calls > MOST_IDLE_CALLS:
            self._world.violated(f"{self._idle_calls} calls in {WINDOW} s changed nothing")

    def _in_trouble(self, call: AnyOperation, sent: float) -> ErrorKind | None:
        now = self._world.now
        if now < self.busy_until:
            return ErrorKind.BUSY
        if now < self.demoted_until:
            return ErrorKind.READ_ONLY
        if now < self.full_until and isinstance(call, Acquire):
            return ErrorKind.NO_MEMORY
        if now < self.strict_until and isinstance(call, Refresh):
            return ErrorKind.REFUSED
        if self._network.chance(self.forgetful):
            self._forgot_at = now
        if sent <= self._forgot_at:
            return ErrorKind.RETRY_NOW
        return None

    def _look_for_duplicates(self, call: Acquire, hub: str, link: SimulatedLink) -> None:
        for number in call.numbers:
            ran_on = self._ran.setdefault((hub, number), link.serial)
            if ran_on > link.serial:
                self._world.fault("late duplicate")
            elif ran_on < link.serial:
                self._world.fault("acquire sent again")

    def answered_since(self, moment: float) -> bool:
        return max(self._troubled_at, self.stalled_until) < moment

    def holds(self, name: str, identity: str) -> bool:
        return identity in self.looks()[name].live

    # -- trouble

    def stall(self, seconds: float) -> None:
        self._world.fault("stalled server")
        self.stalled_until = self._world.now + seconds

    def flush(self) -> None:
        self._world.fault("flushed server")
        self.stalled_until = max(self.stalled_until, self._world.now + FLUSH_TIME)
        self._scripts.flush()
        for judge in self.judges.values():
            judge.flushed()

    def heal(self) -> None:
        self.stalled_until = min(self.stalled_until, self._world.now + FLUSH_TIME)
        self.busy_until = self.demoted_until = self.full_until = self.strict_until = 0.0
        self.forgetful = 0.0


def _unreachable(look: Look, hub: str) -> int:
    """How many requests of *hub* wait, which no message reached."""
    return sum(waiter.unreachable and waiter.id.startswith(hub) for waiter in look.line)
