"""The layers of tests, each with a bounded command, the cheapest first."""

from collections.abc import Iterable
from dataclasses import dataclass

from .mutant import SCRIPTS, SPECIFICATION, Mutant

_RULES = ("_keys.py", "_lease.py", "_protocol.py", "_wire.py")
_BELOW = ("_connection.py", "_dial.py", "_redis.py", "_wire.py", "_scripts.py", "_acl.py")

# What others of the same file would notice as well.
_SLOW = (
    "longer_than_a_lease",
    "more_replicas",
    "share_a_confirmation",
    "thousand",
    "slow_network",
)


def _in_package(*names: str) -> tuple[str, ...]:
    return tuple(f"redsem_async/{name}" for name in names)


@dataclass(frozen=True, slots=True)
class Layer:
    """Tests that look at the package in one way.

    Attributes:
        command: arguments of Python.
        seconds: that it may take; far more than it does where nothing is wrong.
        sees: what is under test there; a mutant of other files is not run.
        blind_to: what is not, although it is named by *sees*.
        seeded: whether it does the same each time.
    """

    name: str
    what: str
    command: tuple[str, ...]
    seconds: float
    sees: tuple[str, ...] = ("redsem_async/",)
    blind_to: tuple[str, ...] = ()
    seeded: bool = False

    def looks_at(self, mutant: Mutant) -> bool:
        """Whether *mutant* is in what is under test here."""
        return any(
            path.startswith(self.sees) and not path.startswith(self.blind_to or ("/",))
            for path in mutant.paths
        )

    def alone(self, test: str) -> tuple[str, ...]:
        """The command that runs *test* and nothing else."""
        if test in self.command or "-n2" not in self.command:
            return self.command
        return *self.command[: self.command.index("-n2")], "-x", test

    def without(self, tests: Iterable[str]) -> tuple[str, ...]:
        """The command, less *tests*."""
        if "-n2" not in self.command:
            return self.command
        return *self.command, *(part for test in tests for part in ("--deselect", test))


def _pytest(*arguments: str, timeout: int = 60) -> tuple[str, ...]:
    plugins = ("-p", "no:cacheprovider", "-p", "tests.mutants.plugin")
    bounds = (f"--timeout={timeout}", "--timeout-method=thread")
    return ("-m", "pytest", "-q", *plugins, *bounds, "-n2", "-x", *arguments)


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


LAYERS = (
    Layer(
        "journal",
        "what scripts did under faults, in their order, beside the specification and the rules",
        _pytest(*_tests("checkers", "journal_checker", "journal_under_faults")),
        300,
    ),
    Layer(
        "simulation",
        "the client on a virtual clock and network, before the specification as a server; seeded",
        ("-m", "tests.simulation", "--operations", "30000", "--most-violations", "1"),
        600,
        blind_to=(SCRIPTS, *_in_package(*_BELOW)),
        seeded=True,
    ),
    Layer(
        "model",
        "rules; scripts on a real server and the specification, driven with the same steps",
        _pytest("tests/unit/test_rules.py", "tests/lua", "tests/stateful"),
        600,
        sees=(SCRIPTS, SPECIFICATION, *_in_package(*_RULES)),
    ),
    Layer(
        "behaviour",
        "promises to users, on a real server and in memory",
        _pytest(
            *_tests("behaviour", "acquire", "cancellation", "forgotten", "limit", "loss"),
            *_tests("behaviour", "guardian", "memory", "queue", "races", "release", "status"),
        ),
        600,
    ),
    Layer(
        "faults",
        "connections, messages, memory, clocks and the server's state, broken on purpose",
        _pytest(
            *_tests("faults", "quick_path", "lost_replies", "messages", "holders", "peers_bugs"),
            *_tests("faults", "recovery", "replicas", "clocks"),
            *("-k", f"not ({' or '.join(_SLOW)})"),
        ),
        900,
    ),
    Layer(
        "processes",
        "processes killed, stopped, forked and blocked; a cluster whose slots move; a failover",
        _pytest(
            *_tests("faults", "processes", "blocked_loop", "cluster", "failover"),
            *("-k", "test_processes or slot_that_moved or computes or stuck or demoted_master"),
        ),
        600,
    ),
    Layer(
        "search",
        "every order of events within small bounds: the client before the specification as a server",
        _pytest(*_tests("modelcheck", "modelcheck"), timeout=300),
        900,
        blind_to=(SCRIPTS, *_in_package(*_BELOW)),
    ),
)
