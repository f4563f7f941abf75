"""Every case runs in a tiny form, with only this library and redis-py installed."""

import json
import re
import shutil
import statistics
from dataclasses import replace

import pytest

from benchmarks._aims import AIMS
from benchmarks._bench import Case, Effort, Table
from benchmarks._libraries import OURS
from benchmarks._report import as_json, as_markdown
from benchmarks._stations import FLOORS, GAPS, STATIONS, TIMELINE
from benchmarks.cases import CASES

pytestmark = pytest.mark.release

TINY = Effort(
    warm_ups=0,
    rounds=1,
    burst=0.05,
    window=0.2,
    handoffs=1,
    tasks=(3, 200),
    bulk=20,
    peer_bulk=10,
    settle=0.1,
)
WITHOUT_ACQUIRE = {"P5"}
NEEDS_A_PEER = re.compile("peer|Node")


def nowhere(name: str) -> None:
    """Finds no program and no module."""


def run(case: Case, url: str, effort: Effort = TINY) -> Table:
    return case.run(url, "asyncio", effort, progress=lambda _: None)


@pytest.fixture(autouse=True)
def no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packages would have to be downloaded."""
    monkeypatch.setattr(shutil, "which", nowhere)


@pytest.mark.parametrize("name", CASES)
def test_a_case_fills_its_table_and_every_aim_finds_its_figure(name: str, server_url: str) -> None:
    table = run(CASES[name], server_url)
    assert table.case == name
    if name not in WITHOUT_ACQUIRE:
        assert any(row.acquire for row in table.rows)
    for row in table.rows:
        assert all(row.figures.values())
    for aim in AIMS:
        if aim.case == name and not NEEDS_A_PEER.search(aim.column):
            rows = [row for row in table.rows if re.fullmatch(aim.subject, row.subject)]
            assert rows, aim
            assert all(aim.column in row.figures for row in rows), aim
    assert f"## {name}: " in as_markdown({"machine": "any"}, [table])
    assert json.loads(as_json({}, [table]))["cases"][0]["case"] == name


def test_what_is_not_installed_is_named_as_not_measured(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks._libraries.find_spec", nowhere)
    table = run(CASES["P3"], server_url)
    assert table.absent["steindamm"] == "not measured: not installed"
    assert table.absent["Node redis-semaphore"].startswith("not measured: not installed")
    assert "| steindamm | not measured: not installed |" in as_markdown({}, [table])


def test_a_timeline_passes_its_stations_in_order(server_url: str) -> None:
    table = run(TIMELINE, server_url, replace(TINY, handoffs=30))
    figures = {(row.label, row.setting): row.figures for row in table.rows}
    for gap in (f"{temperature}, µs" for temperature in GAPS):
        for library in OURS:
            at = {name: statistics.median(figures[library.label, name][gap]) for name in STATIONS}
            passed = [at[name] for name in STATIONS if name != "bytes written"]
            assert 0 < passed[0]
            assert passed == sorted(passed)
            assert at["send begun"] < at["bytes written"]  # it returns when it may, not in order
        assert all(figures[label, "message read"][gap][0] > 0 for label in FLOORS)
