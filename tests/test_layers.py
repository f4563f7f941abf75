"""Imports point one way: facts, wire, hub, tasks, surface, leaves."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import redsem_async

PACKAGE = Path(redsem_async.__file__).parent

# From the bottom to the top. A module imports from its own layer and from those above it in
# this list, never from one below.
LAYERS = {
    "facts": {
        "_acl",
        "_errors",
        "_config",
        "_keys",
        "_lease",
        "_backoff",
        "_protocol",
        "_events",
    },
    "redis": {"_backend", "_scripts", "_wire", "_resp", "_dial", "_apart"},
    "hub": {
        "_clock",
        "_claim",
        "_pulse",
        "_hindrance",
        "_batches",
        "_lane",
        "_fair",
        "_zset",
        "_connection",
        "_redis",
        "_post",
        "_hub",
        "_guardian",
        "_vigil",
        "_relief",
        "_watch",
        "_telling",
    },
    "tasks": {"_cancellation", "_refresher", "_permit", "_acquire", "_call"},
    "surface": {"_status", "_semaphore", "_group", "_client", "__init__"},
    "leaves": {
        "_admission",
        "_chosen",
        "_outbound",
        "asgi",
        "cli",
        "fastapi",
        "httpx",
        "httpx2",
        "observer",
        "opentelemetry",
        "pytest_plugin",
        "taskiq",
        "testing",
        "throttle",
        "__main__",
    },
}
ORDER = list(LAYERS)
REDIS_USERS = {"_wire", "_resp", "_dial", "_apart", "_client"}
FRAMEWORKS = {
    *("fastapi", "starlette", "httpx", "httpx2", "taskiq"),
    *("typer", "rich", "pytest", "hypothesis"),
}


def layer_of(module: str) -> int:
    for number, layer in enumerate(ORDER):
        if module in LAYERS[layer]:
            return number
    raise AssertionError(f"{module} belongs to no layer")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def top(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Absolute names of what *path* imports, in type-checking blocks too."""
    package = ("redsem_async", *path.relative_to(PACKAGE).parent.parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            whole = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{whole}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    """A module that knows those who use it cannot be read, or tested, without them."""
    own = layer_of(top(path))
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "redsem_async" and len(parts) > 1:
            other = parts[1]
            known = any(other in layer for layer in LAYERS.values())
            target = layer_of(other) if known else layer_of("__init__")
            assert target <= own, f"{top(path)} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_redis_is_imported_by_those_who_speak_to_it(path: Path) -> None:
    """Whatever else knows redis-py would have to change with it."""
    at_runtime = {
        alias
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else [name.name for name in node.names]
        )
    }
    if {name.split(".")[0] for name in at_runtime} & {"redis", "hiredis"}:
        assert top(path) in REDIS_USERS | LAYERS["leaves"]


def test_facts_use_the_standard_library_alone_and_no_clock() -> None:
    """Rules that need no event loop and no clock can be read and tested in one place."""
    for module in LAYERS["facts"]:
        for name in imports(PACKAGE / f"{module}.py"):
            first = name.split(".")[0]
            assert first not in {"asyncio", "time", "socket", "threading", "anyio"}, module
            assert first in sys.stdlib_module_names | {"redsem_async"}, (module, name)


def test_the_package_imports_no_leaf_and_no_framework() -> None:
    """`import redsem_async` costs what `import redis.asyncio` costs, and not much more."""
    code = "import sys, redsem_async; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & FRAMEWORKS
    leaves = (*(f"redsem_async.{leaf}" for leaf in LAYERS["leaves"]), "redsem_async._telling")
    assert not {name for name in loaded if name.startswith(leaves)}
