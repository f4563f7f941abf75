"""The figures in README and pages are the published ones, rounded: none is stale in one place.

`FIGURES` names figures by their place in the tables of ``benchmarks/published``. `PASSAGES` are
pieces of the pages in which these names stand for numbers.
"""

import re
from decimal import Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAIRS, PEER = "pairs/s", "÷ best Python peer"
CPU = "pairs per CPU second of the server"

# Name: title of the section, first cells of the row, heading of the column.
FIGURES = {
    "fair": ("P1: ", "FairSemaphore |", PAIRS),
    "fair_to_peer": ("P1: ", "FairSemaphore |", PEER),
    "lock": ("P1: ", "redis.asyncio.Lock |", PAIRS),
    "semaphore_peer": ("P1: ", "py-redis-semaphore |", PAIRS),
    "node": ("P1: ", "Node redis-semaphore |", PAIRS),
    "fair50": ("P2: ", "FairSemaphore, 50 tasks |", PAIRS),
    "fair50_to_peer": ("P2: ", "FairSemaphore, 50 tasks |", PEER),
    "peer50": ("P2: ", "py-redis-semaphore, 50 tasks |", PAIRS),
    "node50": ("P2: ", "Node redis-semaphore, 50 tasks |", PAIRS),
    "uvloop_to_peer": ("Other loops", "3.11 | uvloop |", "÷ best peer"),
    "fair4": ("P9: ", "FairSemaphore |", PAIRS),
    "fair4_to_peer": ("P9: ", "FairSemaphore |", PEER),
    "zset4": ("P9: ", "Semaphore |", PAIRS),
    "peer4": ("P9: ", "self-limiters |", PAIRS),
    "hand_off": ("P4: ", "FairSemaphore |", "acquire p50, ms"),
    "hand_off_peer": ("P4: ", "self-limiters |", "acquire p50, ms"),
    "hand_off_lock": ("P4: ", "redis.asyncio.Lock |", "acquire p50, ms"),
    "fair_cpu": ("scale P9: ", "FairSemaphore |", CPU),
    "zset_cpu": ("scale P9: ", "Semaphore |", CPU),
    "limiters_cpu": ("scale P9: ", "self-limiters |", CPU),
    "py_cpu": ("scale P9: ", "py-redis-semaphore |", CPU),
    "commands": ("scale P5: ", "FairSemaphore, 10,000 waiters |", "commands/s"),
    "waiter": ("scale P8: ", "FairSemaphore, 10,000 waiters |", "client: bytes each"),
    "waiter_key": ("scale P8: ", "FairSemaphore, 10,000 waiters |", "server, keys: bytes each"),
    "refreshes": ("scale P7: ", "FairSemaphore, 10,000 permits |", "commands/s"),
    "refreshing": ("scale P7: ", "FairSemaphore, 10,000 permits |", "% of a core"),
    "permit": ("scale P8: ", "FairSemaphore, 10,000 permits |", "client: bytes each"),
    "permit_key": ("scale P8: ", "FairSemaphore, 10,000 permits |", "server, keys: bytes each"),
    "turn": ("scale 100,000", "Cancel half |", "Longest turn of the loop, ms"),
}

PERFORMANCE = "docs/performance.md"
PASSAGES = [
    ("README.md", "| One task | fair/s | lock/s"),
    ("README.md", "(fair_to_peer× the best semaphore)"),
    ("README.md", "one process | fair50/s | peer50/s | fair50_to_peer× (uvloop_to_peer× with uv"),
    ("README.md", "contended | fair4/s | peer4/s | fair4_to_peer× |"),
    ("README.md", "p50 | hand_off ms | hand_off_peer ms |"),
    (PERFORMANCE, "redis-semaphore node, FairSemaphore fair, redis.asyncio.Lock lock,"),
    (
        PERFORMANCE,
        "the best other semaphore semaphore_peer. 50 tasks: Node node50, FairSemaphore fair50,",
    ),
    (PERFORMANCE, "the best other peer50. Four processes: Semaphore zset4, FairSemaphore fair4,"),
    (PERFORMANCE, "the best other peer4. Hand-off: self-limiters hand_off_peer ms,"),
    (PERFORMANCE, 'FairSemaphore hand_off ms, redis.asyncio.Lock hand_off_lock ms."'),
    (PERFORMANCE, "A hand-off takes hand_off ms"),
    (PERFORMANCE, "self-limiters needs hand_off_peer ms"),
    (PERFORMANCE, "is fair50_to_peer times as fast as the best Python peer on asyncio"),
    (PERFORMANCE, "and uvloop_to_peer times as fast on uvloop"),
    (PERFORMANCE, "is close, with lock pairs a second against fair."),
    (PERFORMANCE, "hence its hand_off_lock ms for a hand-off"),
    (PERFORMANCE, "| `FairSemaphore` | fair_cpu ("),
    (PERFORMANCE, "| `Semaphore` | zset_cpu ("),
    (PERFORMANCE, "| self-limiters | limiters_cpu ("),
    (PERFORMANCE, "| py-redis-semaphore | py_cpu ("),
    (PERFORMANCE, "waiters, `FairSemaphore` | 1 | commands | 0.05% | waiter | waiter_key |"),
    (PERFORMANCE, "lease 10 s | 1 | refreshes | refreshing% | permit | permit_key |"),
    (PERFORMANCE, "blocks it for up to turn ms"),
]


def published(section: str, row: str, column: str) -> float:
    """A median: the first number in a cell."""
    file = "scale.md" if section.startswith("scale ") else "main-cases.md"
    text = (ROOT / "benchmarks" / "published" / file).read_text(encoding="utf-8")
    title = re.escape(section.removeprefix("scale "))
    match = re.search(rf"^## {title}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no section {section!r} in {file}"
    lines = [line[2:] for line in match[0].splitlines() if line.startswith("| ")]
    heading = next(line for line in lines if column in line)
    place = [cell.strip() for cell in heading.split("|")].index(column)
    cells = next(line for line in lines if line.startswith(row)).split("|")
    return float(cells[place].split()[0].replace(",", ""))


@pytest.mark.parametrize(("page", "passage"), PASSAGES)
def test_a_figure_is_the_published_one_rounded(page: str, passage: str) -> None:
    names = [word for word in re.findall(r"\w+", passage) if word in FIGURES]
    pattern = re.escape(" ".join(passage.split())).replace(r"\ ", r"\s+")
    for name in names:
        pattern = re.sub(rf"\b{name}\b", r"([\\d,.]*\\d)", pattern, count=1)
    found = re.search(pattern, (ROOT / page).read_text(encoding="utf-8"))
    assert found is not None, f"{page} has no such passage: {pattern}"
    for name, shown in zip(names, found.groups(), strict=True):
        value = published(*FIGURES[name])
        assert is_rounded(shown.replace(",", ""), value), f"{name}: {shown}, not {value}"


def is_rounded(shown: str, value: float) -> bool:
    """Whether *shown* is *value*, rounded to at least two digits, or to its own last digit."""
    last = Decimal(shown).normalize().as_tuple().exponent
    first = Decimal(shown).adjusted()
    assert isinstance(last, int)
    unit = 10.0 ** (last if "." in shown or first == 0 else min(last, first - 1))
    return abs(float(shown) - value) <= 0.501 * unit


def test_each_figure_is_on_a_page() -> None:
    used = {word for _, passage in PASSAGES for word in re.findall(r"\w+", passage)}
    assert FIGURES.keys() <= used
