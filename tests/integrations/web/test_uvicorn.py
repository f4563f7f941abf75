"""What only real processes show: many of them, clients that reset, and SIGTERM."""

import time

import pytest

from redsem_async import FairSemaphore
from tests.harness.wait import all_free, in_background, until, waiting
from tests.integrations.web.fronts import OnUvicorn
from tests.integrations.web.uvicorns import RawClient

pytestmark = [pytest.mark.release, pytest.mark.timeout(90)]


async def test_the_limit_holds_across_processes(uvicorn: OnUvicorn) -> None:
    sem = FairSemaphore(uvicorn.redis, "web", 3)
    async with uvicorn.serve(limit=3) as one, uvicorn.serve(limit=3) as other:
        requests = [
            in_background(service.client.get("/wait"))
            for service in (one, other)
            for _ in range(10)
        ]
        await waiting(sem, 17)

        async def three_entered() -> bool:
            return await one.entered() + await other.entered() == 3

        await until(three_entered)
        for service in (one, other):
            await service.go()
        assert {(await request).status_code for request in requests} == {200}
        assert await one.entered() == await other.entered() == 10
    await all_free(sem)


async def test_sigterm_lets_requests_finish(uvicorn: OnUvicorn) -> None:
    """Those in flight and those that wait: uvicorn waits, and permits pass on meanwhile."""
    async with uvicorn.serve(graceful=10) as service:
        clients = [await RawClient.get(service.server, "/stream") for _ in range(2)]
        assert await clients[0].status() == 200
        await waiting(uvicorn.sem, 1)
        service.server.terminate()
        await until(lambda: "Shutting down" in service.server.log)
        await clients[0].hang_up()
        assert await clients[1].status() == 200, "it was served in its turn"
        await clients[1].hang_up()
        assert await service.server.ended() == -15
        assert "Application shutdown complete" in service.server.log
        status = await uvicorn.sem.status()
        assert (status.held, status.waiting) == (0, 0)


@pytest.mark.parametrize("path", ["/stubborn", "/stream"])
async def test_sigterm_gives_back_what_is_held_too_long(uvicorn: OnUvicorn, path: str) -> None:
    """What uvicorn cancels frees its permit before the process ends, not a lease later."""
    async with uvicorn.serve(graceful=1, lease=30.0) as service:
        stuck = await RawClient.get(service.server, path)
        await until(uvicorn.sem.locked)
        in_queue = await RawClient.get(service.server, path)
        await waiting(uvicorn.sem, 1)
        sent = time.monotonic()
        service.server.terminate()
        assert await service.server.ended() == -15
        assert time.monotonic() - sent < 8
        status = await uvicorn.sem.status()
        assert (status.held, status.waiting) == (0, 0)
        for client in (stuck, in_queue):
            await client.hang_up()


@pytest.mark.parametrize(
    ("drain", "seconds", "end"), [(10.0, 0.5, b"done"), (0.2, 60.0, b"stopped")]
)
async def test_sigterm_leaves_jobs_the_time_of_the_drain(
    uvicorn: OnUvicorn, drain: float, seconds: float, end: bytes
) -> None:
    """`aclose` in the lifespan waits for other permits, and stops what takes longer."""
    async with uvicorn.serve(drain=drain) as service:
        job = service.client.post("/free/job", params={"seconds": seconds})
        (await job).raise_for_status()
        assert await uvicorn.sem.locked()
        service.server.terminate()
        assert await service.server.ended() == -15
        assert await uvicorn.redis.get("job") == end
        assert (await uvicorn.sem.status()).held == 0
