"""The layers of tests, each with a bounded command, the cheapest first."""

from collections.abc import Iterable
from dataclasses import dataclass

from .mutant import SCRIPTS, SPECIFICATION, Mutant

_RULES = ("_keys.py", "_lease.py", "_protocol.py", "_wire.py")
_BELOW = ("_connection.py", "_dial.py", "_redis.py", "_wire.py", "_scripts.py", "_acl.py")


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


def _pytest(*arguments: str) -> tuple[str, ...]:
    plugins = ("-p", "no:cacheprovider", "-p", "tests.mutants.plugin")
    bounds = ("--timeout", "60", "--timeout-method=thread", "-n2", "-x")
    return ("-m", "pytest", "-q", *plugins, *bounds, *arguments)


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


LAYERS = (
    Layer(
        "model",
        "rules; scripts on a real server and the specification, driven with the same steps",
        _pytest("tests/unit/test_rules.py", "tests/lua", "tests/stateful"),
        600,
        sees=(SCRIPTS, SPECIFICATION, *_in_package(*_RULES)),
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
        "journal",
        "what the scripts wrote on a real server, replayed and compared: a short soak",
        (
            *(
                "-m",
                "tests.soak",
                *["--minutes", "0.25", "--processes", "2", "--names", "20", "--pause", "0.2"],
            ),
            *("--faults", "late duplicate", "lost reply", "dropped connection"),
        ),
        120,
    ),
    Layer(
        "behaviour",
        "promises to users, on a real server and in memory",
        _pytest(
            *_tests("behaviour", "acquire", "cancellation", "forgotten", "limit", "loss"),
            *_tests("behaviour", "memory", "queue", "release", "status"),
        ),
        600,
    ),
    Layer(
        "search",
        "every order of events within small bounds, on the specification",
        _pytest(
            *_tests("modelcheck", "modelcheck"),
            *("-k", "not (zset and (dies or stopped or connections or slow))"),
        ),
        600,
        sees=(SPECIFICATION, *_in_package("_lease.py")),
    ),
    Layer(
        "faults",
        "connections, messages, memory, clocks and the server's state, broken on purpose",
        _pytest(
            *_tests("faults", "quick_path", "lost_replies", "messages", "holders", "peers_bugs"),
            *_tests("faults", "recovery", "replicas", "clocks"),
            *("-k", "not too_few and not more_replicas and not thousands"),
        ),
        900,
    ),
    Layer(
        "processes",
        "real processes, killed, stopped, forked and blocked; a cluster whose slots move",
        _pytest(*_tests("faults", "processes")),
        600,
    ),
)
