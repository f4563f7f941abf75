"""The programs of docs/examples/frameworks and docs/testing.md, with what they are written for.

Runs only with ``REDSEM_FRAMEWORKS`` set to one of the names below, as `nox -s with` does: each
needs packages that the group `dev` leaves out.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.programs import DOCS, Programs, titled_blocks
from tests.harness.servers import StartServer

CHOSEN = os.environ.get("REDSEM_FRAMEWORKS")
TESTS = {
    "arq": "test_queues.py",
    "celery": "test_queues.py",
    "celery-threads": "test_queues.py",
    "dramatiq": "test_queues.py",
    "litestar": "test_asgi_apps.py",
    "jupyter": "test_notebook.py",
    "wsgi": "test_wsgi_apps.py",
}
collect_ignore = sorted(set(TESTS.values()) - {TESTS.get(CHOSEN or "")})


# What the programs call `work`: it counts, on the server, and stays inside for some seconds.
WORK = """
import asyncio

from redis.asyncio import Redis


async def render(document: str) -> str:
    async with Redis.from_url("redis://localhost:6379") as redis:
        inside = await redis.incr("inside")
        try:
            await redis.rpush("seen", inside)
            await asyncio.sleep(float(document.partition("-")[2]))
        finally:
            await redis.decr("inside")
        await redis.rpush("done", document)
    return document
"""


# The smallest Django site that there is, with the page's middleware.
SITE = """
import time

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path


def render(request):
    time.sleep(1.5)
    return HttpResponse("done")


urlpatterns = [path("render", render)]
settings.configure(ALLOWED_HOSTS=["*"], MIDDLEWARE=["limits.limits"], ROOT_URLCONF=__name__)
application = get_wsgi_application()
"""


@pytest.fixture
def programs(embedded: StartServer, tmp_path: Path) -> Iterator[Programs]:
    """The programs of the pages in a folder, for a server of this test alone."""
    with ExitStack() as stack:
        files = (DOCS / "examples" / "frameworks").glob("*.py")
        examples = {file.name: file.read_text(encoding="utf-8") for file in files}
        pages = titled_blocks("testing.md") | titled_blocks("threads.md")
        every = {**pages, **examples, "work.py": WORK, "site_of_django.py": SITE}
        yield Programs(tmp_path, embedded().url, stack, every)
