"""What users install is whole: the scripts and the type marker, not the Python files alone."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
import redis

from redsem_async._redis.dial import NEWEST, OLDEST
from redsem_async._redis.scripts import layout

CHECKOUT = Path(__file__).parents[2]
SOURCE = CHECKOUT / "redsem_async"
SUFFIXES = {".py", ".css", ".html", ".js", ".lua", ".svg", ".typed"}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("archives")
    run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=CHECKOUT)
    return folder


def test_the_wheel_has_every_file_of_the_package(archives: Path) -> None:
    """A script that is not packed is missed only when it is first run, by a user."""
    with zipfile.ZipFile(only(archives, "*.whl")) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("redsem_async/")}
    assert packed == {f"redsem_async/{name}" for name in sources()}


def test_the_description_has_no_link_that_leads_nowhere(archives: Path) -> None:
    """An index shows the README without the repository around it."""
    with zipfile.ZipFile(only(archives, "*.whl")) as wheel:
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
    with tarfile.open(only(archives, "*.tar.gz")) as sdist:
        packed = {str(PurePosixPath(*PurePosixPath(p).parts[1:])) for p in sdist.getnames()}
    assert packed >= {f"redsem_async/{name}" for name in sources()}
    assert packed >= {"pyproject.toml", "README.md", "LICENSE", "noxfile.py", "tests/conftest.py"}
    assert ".github/CONTRIBUTING.md" in packed


def test_actions_are_pinned() -> None:
    """A tag can move to another commit. Dependabot keeps the commits current."""
    texts = [path.read_text() for path in (CHECKOUT / ".github").rglob("*.yml")]
    used = re.findall(r"uses: ([^.].*)", "\n".join(texts))
    pinned = re.compile(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert used
    assert [each for each in used if not pinned.fullmatch(each)] == []


def test_an_unpacked_wheel_works_without_the_checkout(archives: Path, tmp_path: Path) -> None:
    """Each script is read where it was installed."""
    with zipfile.ZipFile(only(archives, "*.whl")) as wheel:
        wheel.extractall(tmp_path)
    code = "from redsem_async._redis import scripts; print(scripts.layout(), scripts.__file__)"
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"
    number, place = run(sys.executable, "-I", "-c", path).split()
    assert int(number) == layout()
    assert Path(place).is_relative_to(tmp_path)


def sources() -> dict[str, Path]:
    """The files of the package in the checkout, by their path in it."""
    files = [path for path in SOURCE.rglob("*") if path.suffix in SUFFIXES]
    return {path.relative_to(SOURCE).as_posix(): path for path in files}


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
