"""Every case runs in a tiny form, with only this library and redis-py installed."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks._report import as_json, as_markdown
from benchmarks._results import Table
from benchmarks._run import Run
from benchmarks._setup import Effort, Setup, runner_of
from benchmarks._stations import GAPS, STATIONS, measure
from benchmarks.cases import CASES
from benchmarks.libraries import OURS

pytestmark = pytest.mark.release

TINY = Effort(
    warm_ups=0,
    rounds=1,
    burst=0.05,
    window=0.2,
    handoffs=1,
    tasks=(3, 6),
    bulk=20,
    peer_bulk=10,
    populations=(2, 5),
    imports=2,
    settle=0.1,
    lease=0.5,
)


def nowhere(name: str) -> None:
    """Finds no program and no module."""


WITHOUT_ACQUIRE = {"P5"}


def run(case: str, url: str) -> Table:
    setup = Setup(url=url, loop="asyncio", effort=TINY, progress=lambda _: None)
    with runner_of("asyncio") as runner:
        return runner.run(CASES[case].measure(setup))


@pytest.fixture(autouse=True)
def no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packages would have to be downloaded."""
    monkeypatch.setattr(shutil, "which", nowhere)


@pytest.mark.parametrize("case", CASES)
def test_a_case_yields_a_table_whose_aims_are_judged(
    case: str, server_url: str, tmp_path: Path
) -> None:
    table = run(case, server_url)
    assert table.case == case
    assert table.rows
    if case not in WITHOUT_ACQUIRE:
        assert any(row.acquire for row in table.rows)
    for row in table.rows:
        row.verdicts()
        assert all(figure.values for figure in row.figures)

    whole = Run({"machine": "any"}, [table])
    assert f"## {case}: " in as_markdown(whole)
    assert as_json(whole)


def test_what_is_not_installed_is_named_as_not_measured(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.libraries._base.find_spec", nowhere)
    table = run("P3", server_url)
    absent = {one.label: one.why for one in table.absent}
    assert absent["steindamm"] == "not measured: not installed"
    assert absent["Node redis-semaphore"].startswith("not measured: not installed")
    assert "| steindamm | not measured: not installed |" in as_markdown(Run({}, [table]))


def test_a_timeline_passes_its_stations_in_order(server_url: str) -> None:
    effort = replace(TINY, handoffs=30)
    setup = Setup(url=server_url, loop="asyncio", effort=effort, progress=lambda _: None)
    with runner_of("asyncio") as runner:
        table = runner.run(measure(setup))
    for gap in (f"{temperature}, µs" for temperature in GAPS):
        for library in OURS:
            at = {name: table.row(library.label, name).figure(gap).median for name in STATIONS}
            passed = [at[name] for name in STATIONS if name != "bytes written"]
            assert 0 < passed[0]
            assert passed == sorted(passed)
            assert at["send begun"] < at["bytes written"]  # it returns when it may, not in order
