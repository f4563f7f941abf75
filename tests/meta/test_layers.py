"""The architecture: imports point downwards, nothing goes round in a circle, files stay small.

Imports for type checking and imports inside functions count like all others.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import redsem_async
from tests.harness.source import tree_of

PACKAGE = Path(redsem_async.__file__).parent

# What a folder may import, beside itself. Public modules and folders are leaves: they may import
# all of these, and nothing here imports them.
BELOW: dict[str, set[str]] = {
    "_core": set(),
    "_protocol": {"_core"},
    "_observers": {"_core"},
    "_redis": {"_protocol", "_core"},
    "_hub": {"_protocol", "_observers", "_core"},
    "_api": {"_hub", "_redis", "_protocol", "_observers", "_core"},
    "_integrations": {"_api", "_redis", "_protocol", "_observers", "_core"},
}

# From the top to the bottom: a module of `_hub` imports only from the lines below its own, and
# from its own line where that makes no circle.
HUB = (
    {"hub"},
    {"pipeline", "redirects", "refresher", "remote_semaphore"},
    {"endings"},
    {"calls"},
    {"commands"},
    {"deadlines"},
    {"state"},
    {"model", "moments", "route", "identity", "introduction"},
)
MAX_LINES = 600
MAX_METHODS = 35
FRAMEWORKS = {
    *("fastapi", "starlette", "httpx", "httpx2", "pydantic_ai", "taskiq"),
    *("typer", "rich", "pytest", "hypothesis"),
    *("jinja2", "prometheus_client", "uvicorn"),
}


def modules() -> dict[str, Path]:
    """The modules of the package by dotted name, without ``redsem_async``."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str) -> Iterator[str]:
    """What a module imports, as absolute dotted names."""
    path = MODULES[name]
    package = ["redsem_async", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{whole}.{alias.name}" for alias in node.names)


def imported_modules(name: str) -> set[str]:
    """The modules of the package that a module imports."""
    found: set[str] = set()
    for imported in imports(name):
        head, _, rest = imported.partition(".")
        if head != "redsem_async":
            continue
        while rest and rest not in MODULES:
            rest = rest.rpartition(".")[0]
        found.add(rest)
    return found - {name}


GRAPH = {name: imported_modules(name) for name in MODULES}


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one node, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component: set[str] = set()
            while node not in component:
                component.add(stack.pop())
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_there_is_no_circle() -> None:
    """Modules that import each other can only be understood together."""
    found = circles(GRAPH)
    sizes = sorted(map(len, found))
    print("circles of", sizes, *map(sorted, found))
    assert not found


def test_a_circle_would_be_found() -> None:
    """Of any length, and beside what is in none."""
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set[str](), "f": {"d"}}
    assert circles(graph) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}) == [{"a", "b"}, {"c", "d"}]


def test_the_root_has_public_modules_only() -> None:
    """What is private stands in a folder whose name says what it is for."""
    private = {path.name for path in PACKAGE.glob("_*.py")}
    assert private == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("_")])
def test_imports_point_downwards(name: str) -> None:
    """A module that knows its users cannot be read, or tested, without them."""
    folder = name.partition(".")[0]
    if folder == "__main__":
        return
    for other in GRAPH[name]:
        below = other.partition(".")[0]
        assert below == folder or below in BELOW[folder], f"{name} imports {other}"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("_hub.")])
def test_imports_within_the_hub_point_downwards(name: str) -> None:
    """From the hub down to the request and the lease."""
    floors = {module: floor for floor, line in enumerate(HUB) for module in line}
    own = name.split(".")[1]
    for other in GRAPH[name]:
        if other.startswith("_hub."):
            assert floors[other.split(".")[1]] >= floors[own], f"{name} imports {other}"


def test_what_is_below_the_api_reaches_no_redis() -> None:
    """Memory, or another store, takes the place of Redis without it."""
    folders = ("_core", "_protocol", "_observers", "_hub")
    reaching = [name for name in MODULES if name.partition(".")[0] in folders]
    reached = set(reaching)
    while more := {other for name in reached for other in GRAPH[name]} - reached:
        reached |= more
    assert not {name for name in reached if name.startswith("_redis")}
    for name in reached:
        tops = {imported.partition(".")[0] for imported in imports(name)}
        assert not tops & {"redis", "hiredis"}, name


@pytest.mark.parametrize("name", MODULES)
def test_redis_is_imported_in_its_own_folder(name: str) -> None:
    """Whatever else knows redis-py would have to change with it."""
    tree = tree_of(MODULES[name])
    at_runtime: set[str] = set()
    for node in tree.body:  # not those for type checking
        if isinstance(node, ast.Import):
            at_runtime |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            at_runtime.add((node.module or "").partition(".")[0])
    if at_runtime & {"redis", "hiredis"}:
        private = name.startswith("_")
        assert not private or name.startswith("_redis.") or name == "_api.client"


def test_core_uses_no_clock_and_no_event_loop() -> None:
    """Rules that need neither can be read and tested in one place."""
    for name in MODULES:
        if name.startswith("_core.") and name not in {"_core.clock", "_core.cancellation"}:
            for imported in imports(name):
                first = imported.partition(".")[0]
                assert first not in {"asyncio", "time", "socket", "threading", "anyio"}, name
                assert first in sys.stdlib_module_names | {"redsem_async"}, (name, imported)


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_classes_stay_small(name: str) -> None:
    """A file that a reader can hold in mind, and a class whose verbs can be counted."""
    text = MODULES[name].read_text()
    assert len(text.splitlines()) <= MAX_LINES
    for node in ast.walk(tree_of(MODULES[name])):
        if isinstance(node, ast.ClassDef):
            methods = [
                n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            assert len(methods) <= MAX_METHODS, f"{node.name} has {len(methods)} methods"


def test_the_package_imports_no_leaf_and_no_framework() -> None:
    """`import redsem_async` costs what `import redis.asyncio` costs, and not much more."""
    code = "import sys, redsem_async; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & FRAMEWORKS
    private = {f"redsem_async.{folder}" for folder in BELOW}
    ours = {name for name in loaded if name.startswith("redsem_async.")}
    leaves = {name for name in ours if ".".join(name.split(".")[:2]) not in private}
    assert not leaves, "nothing in the package imports a public module"
    assert "redsem_async._observers.notifier" not in loaded
