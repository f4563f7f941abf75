"""The programs of docs/workers.md and docs/frameworks.md, with what they are written for.

Runs only with ``REDSEM_FRAMEWORKS`` set to one of the names below, as `nox -s frameworks` does:
each needs packages that the `dev` extra leaves out.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.servers import StartServer
from tests.integrations.frameworks.pages import Programs

CHOSEN = os.environ.get("REDSEM_FRAMEWORKS")
TESTS = {
    "arq": "test_queues.py",
    "celery": "test_queues.py",
    "dramatiq": "test_queues.py",
    "litestar": "test_asgi_apps.py",
    "jupyter": "test_notebook.py",
}
collect_ignore = sorted(set(TESTS.values()) - {TESTS.get(CHOSEN or "")})


@pytest.fixture
def programs(embedded: StartServer, tmp_path: Path) -> Iterator[Programs]:
    """The programs of the pages in a folder, for a server of this test alone."""
    with ExitStack() as stack:
        yield Programs(tmp_path, embedded().url, stack)
