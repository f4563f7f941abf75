"""Without what it integrates with, a module says what to install."""

import subprocess
import sys

import pytest

IMPORTS = [
    ("fastapi", "fastapi", "fastapi"),
    ("httpx", "httpx", "httpx"),
    ("httpx2", "httpx2", "httpx2"),
    ("opentelemetry.metrics", "opentelemetry", "otel"),
    ("pydantic_ai.concurrency", "pydantic_ai", "pydantic-ai"),
    ("taskiq", "taskiq", "taskiq"),
    ("starlette", "dashboard", "dashboard"),
    ("jinja2", "dashboard", "dashboard"),
    ("prometheus_client", "dashboard", "dashboard"),
]

# Runs the command with one module missing.
COMMAND = """
import importlib.util, sys

missing = sys.argv.pop(1)

class Missing:
    def find_spec(self, name, *_):
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == missing else find_spec(name, *rest)
sys.meta_path.insert(0, Missing())

from redsem_async.cli import main

main()
"""


@pytest.mark.parametrize(("missing", "module", "extra"), IMPORTS)
def test_a_module_names_its_extra(missing: str, module: str, extra: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import redsem_async.{module}"
    assert f"pip install 'redsem-async[{extra}]'" in last_line_of("-c", code)


def test_a_memory_backend_names_its_extra() -> None:
    """Once it is made: a real server for tests does without, and so does `unlimited`."""
    code = "import sys; sys.modules['lupa'] = None; from redsem_async.testing import *; "
    code += "unlimited().__enter__(); assert embedded_redis; print('so far', file=sys.stderr); "
    assert "pip install 'redsem-async[testing]'" in last_line_of("-c", f"{code} MemoryBackend()")


@pytest.mark.release
@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("click", "demo", "demo"),
        ("rich", "demo", "demo"),
        ("httpx", "demo", "demo"),
        ("click", "ls", "cli"),
        ("click", "--help", "cli"),
        ("uvicorn", "serve", "dashboard"),
        ("jinja2", "serve", "dashboard"),
    ],
)
def test_a_command_names_its_extra(module: str, command: str, extra: str) -> None:
    """On the only line: the library without extras installs the command too."""
    said = last_line_of("-c", COMMAND, module, command, lines=1)
    assert said == f"redsem-async: {module} is missing: pip install 'redsem-async[{extra}]'"


def last_line_of(*arguments: str, lines: int | None = None) -> str:
    """Of what a failing program writes."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert lines is None or len(said) == lines, said
    return said[-1]
