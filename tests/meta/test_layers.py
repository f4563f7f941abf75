"""The architecture: imports point downwards, without circles, and those for type checking too."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import redsem_async
from tests.harness.source import tree_of

PACKAGE = Path(redsem_async.__file__).parent

# What a folder may import, beside itself. Public modules may import all of these, and nothing
# here imports a public module.
BELOW: dict[str, set[str]] = {
    "_core": set(),
    "_protocol": {"_core"},
    "_observers": {"_core"},
    "_redis": {"_protocol", "_core"},
    "_hub": {"_protocol", "_observers", "_core"},
    "_api": {"_hub", "_redis", "_protocol", "_observers", "_core"},
    "_integrations": {"_api", "_redis", "_protocol", "_observers", "_core"},
}
# From the top to the bottom: a module of `_hub` imports from its own line and those below.
HUB = (
    {"hub"},
    {"outage", "pipeline", "redirects", "refresher", "remote_semaphore"},
    {"endings"},
    {"calls"},
    {"commands"},
    {"deadlines"},
    {"state"},
    {"model", "moments", "route", "identity", "introduction"},
)
ROW = {module: row for row, modules in enumerate(HUB) for module in modules}
FRAMEWORKS = {
    *("fastapi", "starlette", "httpx", "httpx2", "pydantic_ai", "taskiq", "typer", "rich"),
    *("pytest", "hypothesis", "jinja2", "prometheus_client", "uvicorn"),
}


def imports(path: Path) -> Iterator[str]:
    """What a module imports, as absolute dotted names."""
    package = ("redsem_async", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            whole = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{whole}.{alias.name}" for alias in node.names)


def dotted(path: Path) -> str:
    parts = ("redsem_async", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


IMPORTS = {dotted(path): [*imports(path)] for path in PACKAGE.rglob("*.py")}


def modules_of(name: str) -> set[str]:
    """The modules of the package that a module imports."""
    found: set[str] = set()
    for imported in IMPORTS[name]:
        while imported and imported not in IMPORTS:
            imported = imported.rpartition(".")[0]  # a name in a module  # noqa: PLW2901
        found.add(imported)
    return found - {"", name}


def test_there_is_no_circle() -> None:
    """Modules that import each other can only be understood together."""
    TopologicalSorter({name: modules_of(name) for name in IMPORTS}).prepare()


def test_imports_point_downwards() -> None:
    """A module that knows its users cannot be read, or tested, without them."""
    for name in IMPORTS:
        folder, _, module = name.removeprefix("redsem_async.").partition(".")
        for other in modules_of(name) if folder in BELOW else ():
            below, _, used = other.removeprefix("redsem_async.").partition(".")
            assert below == folder or below in BELOW[folder], f"{name} imports {other}"
            assert not folder == below == "_hub" or ROW[module] <= ROW[used], (name, other)


def test_only_redis_and_the_api_know_redis_and_rules_know_no_clock() -> None:
    """Memory takes the place of Redis, and what needs no event loop is tested without one."""
    for name, imported in IMPORTS.items():
        tops = {each.partition(".")[0] for each in imported}
        folder, _, module = name.removeprefix("redsem_async.").partition(".")
        if folder in {"_core", "_protocol", "_observers", "_hub"}:
            assert not tops & {"redis", "hiredis"}, name
        if folder == "_core" and module not in {"clock", "cancellation"}:
            assert not tops & {"asyncio", "time", "socket", "threading"}, name
            assert tops <= sys.stdlib_module_names | {"redsem_async"}, name


def test_the_package_imports_no_public_module_and_no_framework() -> None:
    """`import redsem_async` costs what `import redis.asyncio` costs, and not much more."""
    code = "import sys, redsem_async; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & FRAMEWORKS
    ours = {name.split(".")[1] for name in loaded if name.startswith("redsem_async.")}
    assert ours <= BELOW.keys(), "nothing in the package imports a public module"
    assert "redsem_async._observers.notifier" not in loaded
