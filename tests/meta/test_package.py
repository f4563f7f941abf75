"""What users install is whole: the scripts and the type marker, not the Python files alone."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redsem_async._redis.dial import NEWEST, OLDEST
from redsem_async._redis.scripts import layout

CHECKOUT = Path(__file__).parents[2]
SUFFIXES = {".py", ".css", ".html", ".js", ".lua", ".svg", ".typed"}
SOURCES = (CHECKOUT / "redsem_async").rglob("*")
FILES = {p.relative_to(CHECKOUT).as_posix() for p in SOURCES if p.suffix in SUFFIXES}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("archives")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=CHECKOUT, check=True)
    return folder


@pytest.fixture
def wheel(archives: Path) -> Iterator[zipfile.ZipFile]:
    [path] = archives.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        yield wheel


def test_the_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    """A script that is not packed is missed only when it is first run, by a user."""
    assert {name for name in wheel.namelist() if name.startswith("redsem_async/")} == FILES


def test_the_description_has_no_link_that_leads_nowhere(wheel: zipfile.ZipFile) -> None:
    """An index shows the README without the repository around it."""
    [metadata] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    text = wheel.read(metadata).decode()
    assert "Description-Content-Type: text/markdown" in text
    assert "# redsem-async" in text
    assert re.findall(r'(?:\]\(|src="|srcset=")(?!https?://)', text) == []
    assert re.search(r"^Project-URL: Documentation, https://", text, re.MULTILINE)


def test_the_versions_of_redis_py_are_named_alike() -> None:
    """What is tried, required, documented, and said by the error."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert f"redis[hiredis]>={OLDEST}" in project["dependencies"]
    assert f"redis-py-{OLDEST}" in (CHECKOUT / "noxfile.py").read_text()
    for page in ("index.md", "where-it-runs.md"):
        assert f"redis-py {OLDEST} to {NEWEST}" in (CHECKOUT / "docs" / page).read_text()
    newest = tuple(map(int, NEWEST.split(".")))
    assert redis.VERSION[:2] <= newest, "try it, and name it"


def test_the_sdist_has_what_the_wheel_is_built_from(archives: Path) -> None:
    """Distributions build from it, and run the tests that come with it."""
    [path] = archives.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    beside = {"pyproject.toml", "README.md", "LICENSE", "noxfile.py", ".ci/run"}
    assert packed >= FILES | beside | {".github/CONTRIBUTING.md"}


def test_actions_are_pinned() -> None:
    """A tag can move to another commit. Dependabot keeps the commits current."""
    texts = [path.read_text() for path in (CHECKOUT / ".github").rglob("*.yml")]
    used = re.findall(r"uses: ([^.].*)", "\n".join(texts))
    pinned = re.compile(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert used
    assert [each for each in used if not pinned.fullmatch(each)] == []


def test_an_unpacked_wheel_works_without_the_checkout(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """Each script is read where it was installed."""
    wheel.extractall(tmp_path)
    code = "from redsem_async._redis import scripts; print(scripts.layout(), scripts.__file__)"
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"
    number, place = subprocess.check_output([sys.executable, "-I", "-c", path], text=True).split()
    assert int(number) == layout()
    assert Path(place).is_relative_to(tmp_path)
