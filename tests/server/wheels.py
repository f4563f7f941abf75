"""Wheels of other versions of the library, each unpacked into a folder of its own.

A process imports one of them where its folder comes first in ``PYTHONPATH``. What the library
requires is found in the environment of the tests.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import redsem_async
from redsem_async._redis.scripts import layout

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = "redsem_async"
BUILT_WITH = (".config", "pyproject.toml", "README.md", "LICENSE")
VERSION, HEAD = "redsem_async/_core/version.py", "redsem_async/lua/head.lua"


class Wheel(NamedTuple):
    """An installed wheel.

    Attributes:
        folder: from which Python imports it.
        version: that it says it has.
        layout: the number of its layout of the keys.
    """

    folder: Path
    version: str
    layout: int

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables with which a process imports it, and no other."""
        return {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1"}


def wheel_of_checkout(folder: Path, version: str, number: int) -> Wheel:
    """A wheel of this version, or of one that differs in its *version* and *number* alone."""
    source = folder / "source"
    _copy(source, PACKAGE)
    _replace(source / VERSION, f'"{redsem_async.__version__}"', f'"{version}"')
    _replace(source / HEAD, f"LAYOUT = '{layout()}'", f"LAYOUT = '{number}'")
    return _wheel_of(folder, source)


def wheel_of_first(folder: Path) -> Wheel:
    """A wheel of the commit that the changelog names as the first with the present layout."""
    line = rf"^<!-- layout {layout()} since: ([0-9a-f]{{7,40}}) -->$"
    found = re.search(line, (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found, f"CHANGELOG.md has no line <!-- layout {layout()} since: COMMIT -->"
    known = ["git", "cat-file", "-e", found[1]]
    if subprocess.run(known, cwd=CHECKOUT, stderr=subprocess.DEVNULL, check=False).returncode:
        # A clone without the history: where it came from may have it.
        subprocess.run(["git", "fetch", "-q", "--unshallow"], cwd=CHECKOUT, check=False)
    git = ["git", "archive", found[1], PACKAGE]
    archive = subprocess.run(git, cwd=CHECKOUT, stdout=subprocess.PIPE, check=False)
    assert archive.returncode == 0, "this test needs a clone with the whole history"
    source = folder / "source"
    source.mkdir()
    subprocess.run(["tar", "x"], cwd=source, input=archive.stdout, check=True)
    return _wheel_of(folder, source)


def _copy(source: Path, *names: str) -> None:
    """Copy what the checkout has under *names* into *source*."""
    for name in names:
        place = CHECKOUT / name
        if place.is_dir():
            shutil.copytree(place, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, source)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path} has not once {old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def _wheel_of(folder: Path, source: Path) -> Wheel:
    """Build the package in *source* as the checkout is built, and unpack the wheel.

    Unpacking is all that installing it does.
    """
    _copy(source, *BUILT_WITH)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = folder.glob("*.whl")
    installed = folder / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    number = re.search(r"^local LAYOUT = '(\d+)'$", (installed / HEAD).read_text(), re.MULTILINE)
    assert number is not None
    return Wheel(installed, wheel.name.split("-")[1], int(number[1]))
