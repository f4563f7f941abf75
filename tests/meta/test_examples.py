"""The programs of docs/examples run, and print what they say."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path

import pytest

from redsem_async import Semaphore, connect
from tests.harness.servers import StartServer, complaints
from tests.harness.wait import waiting

pytestmark = pytest.mark.release

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def output_of(program: str, server_url: str) -> list[str]:
    """Run a program against the server under test; whatever warns fails."""
    command = [sys.executable, "-X", "dev", "-W", "error", str(EXAMPLES / f"{program}.py")]
    environment = os.environ | {"REDIS_URL": server_url}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    return done.stdout.splitlines()


def test_the_polite_scraper_has_two_visitors_at_each_domain(embedded: StartServer) -> None:
    """Of two scrapers together."""
    domains = ("books.example", "maps.example", "news.example")
    expected = [f"{domain}: 16 pages, at most 2 at a time" for domain in domains]
    assert output_of("polite_scraper", embedded().url) == expected


def test_the_gpu_batch_fills_its_slots_from_several_processes(embedded: StartServer) -> None:
    """Every image once."""
    [line] = output_of("gpu_batch", embedded().url)
    assert re.fullmatch("40 images by [2-4] processes, at most 2 at a time", line)


def test_each_worker_has_a_gpu_of_its_own(embedded: StartServer) -> None:
    """That of a worker that was killed is free for another after its lease."""
    assert output_of("gpu_slots", embedded().url) == [
        "on GPUs 0 1",
        "after a crash, on the same GPU: True",
    ]


async def test_the_gpu_of_a_killed_worker_is_not_free_before_its_lease_ends(
    embedded: StartServer,
) -> None:
    example = run_path(str(EXAMPLES / "gpu_slots.py"))
    start, line_of, url = example["start"], example["line_of"], embedded().url
    first, second = await start(url), await start(url)
    gpu = await line_of(first)
    await line_of(second)
    third = await start(url)
    async with connect(url) as redis:
        gpus = Semaphore(redis, "gpu-slots", slots=example["GPUS"])
        await waiting(gpus, 1, within=30)
        first.kill()
        await first.communicate()
        asked = time.monotonic()
        [died] = [h for h in (await gpus.status()).holders if h.slots == (int(gpu),)]
        assert await line_of(third) == gpu
        assert time.monotonic() >= asked + died.expires_in - 0.001  # rounded to milliseconds
    for worker in (second, third):
        await worker.communicate(b"")


def test_permits_are_handed_over_from_requests_to_a_worker(embedded: StartServer) -> None:
    """A process of its own works under them, and a job that comes twice is done once."""
    *lines, last = output_of("handover", embedded().url)
    orders, results = lines[:3], sorted(lines[3:])
    assert [line.split()[0] for line in orders] == ["202", "202", "503"]
    made = [line.split(",")[0] for line in results if "fencing token" in line]
    assert made == [f"{month}: made by another process" for month in ("february", "january")]
    assert [line for line in results if "skipped" in line] == [
        "january: skipped (expired in the queue, or delivered twice)"
    ]
    assert last == "free again: 2"


def test_a_429_has_both_processes_back_off(embedded: StartServer) -> None:
    retries, backs_off = output_of("busy_upstream", embedded().url)
    counts = [re.findall(r"\d+", line) for line in (retries, backs_off)]
    (refused, _), (refused_with, most) = ([int(count) for count in each] for each in counts)
    assert 0 < refused_with < refused / 3
    assert most <= 8


def test_the_semaphores_of_the_book_exceed_their_limit(embedded: StartServer) -> None:
    """In an order of its own steps, in which one script leaves no room."""
    cases = ("clocks", "timeouts", "trips")
    expected = [f"{case}: the book admits 2, FairSemaphore 1" for case in cases]
    assert output_of("book_races", embedded().url) == expected


def test_what_an_acquire_costs_is_on_the_page(embedded: StartServer) -> None:
    """The first column of figures, in the rows that the program has."""
    page = (EXAMPLES.parent / "performance.md").read_text()
    counts = re.findall(r"^\| (?:with|`Semaphore`,) .*? \| (\d+) \|", page, re.MULTILINE)
    kinds = zip(("limit", "key_limit", "share", "slots"), counts, strict=True)
    expected = [f"{kind} 2 scripts {count} commands" for kind, count in kinds]
    assert output_of("cost", embedded().url) == expected
