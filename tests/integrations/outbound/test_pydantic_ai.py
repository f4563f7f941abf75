"""`SemaphoreLimiter` in the agents and models of Pydantic AI, with models that are functions."""

import asyncio
import pickle
from collections.abc import AsyncIterator

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ConcurrencyLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from redsem_async import AcquireTimeout, AnySemaphore, FairSemaphore, QueueFull, SemaphoreGroup
from redsem_async.pydantic_ai import PermitsQueueFull, PermitsTimeout, SemaphoreLimiter
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, available, cancelled, in_background, soon, until, waiting


@pytest.fixture
def sem(backend: MemoryBackend) -> FairSemaphore:
    return FairSemaphore(backend, "models", 2, lease=60.0)


class Upstream:
    """A model that answers when it is told to, and counts its requests."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.answers = asyncio.Event()
        self.model = FunctionModel(self._answer, stream_function=self._stream)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.answers.wait()
        self.running -= 1
        return ModelResponse(parts=[TextPart("yes")])

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "ye"
        await self.answers.wait()
        yield "s"


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


async def test_the_limit_holds_for_several_models(sem: FairSemaphore, upstream: Upstream) -> None:
    """Two limiters are two processes, to Redis."""
    agents = [
        Agent(ConcurrencyLimitedModel(upstream.model, limiter=SemaphoreLimiter(sem)))
        for _ in range(2)
    ]
    runs = [in_background(agent.run("?")) for agent in agents * 4]
    await available(sem, 0)
    upstream.answers.set()
    assert {(await soon(run)).output for run in runs} == {"yes"}
    assert upstream.most <= 2
    await all_free(sem)


async def test_a_stream_holds_its_permit_to_the_end(
    sem: FairSemaphore, upstream: Upstream
) -> None:
    """Though another task may close it."""
    agent = Agent(ConcurrencyLimitedModel(upstream.model, limiter=SemaphoreLimiter(sem)))
    async with agent.run_stream("?") as result:
        texts = result.stream_text(delta=True, debounce_by=None)
        assert await anext(texts) == "ye"
        assert await sem.available() == 1
        upstream.answers.set()
        assert await in_background(rest(texts)) == ["s"]
    await all_free(sem)


async def rest(texts: AsyncIterator[str]) -> list[str]:
    return [text async for text in texts]


async def test_release_in_another_task(sem: FairSemaphore) -> None:
    """Each release is one permit, its own where the task has one."""
    limiter = SemaphoreLimiter(sem)
    await limiter.acquire("model:a")
    await asyncio.create_task(limiter.acquire("model:b"))
    assert await sem.available() == 0
    limiter.release()
    await available(sem, 1)
    limiter.release()
    await all_free(sem)


async def test_a_waiting_run_is_refused_or_cancelled(
    sem: FairSemaphore, upstream: Upstream
) -> None:
    agent = Agent(
        ConcurrencyLimitedModel(upstream.model, limiter=SemaphoreLimiter(sem, timeout=0.05))
    )
    runs = [in_background(agent.run("?")) for _ in range(2)]
    await available(sem, 0)
    with pytest.raises(PermitsTimeout) as timed_out:
        await agent.run("?")
    is_both(timed_out.value, AcquireTimeout)
    assert timed_out.value.waited >= 0.05
    await cancelled(*runs)
    await all_free(sem)


async def test_a_full_queue_is_an_error_of_both_libraries(
    backend: MemoryBackend, upstream: Upstream
) -> None:
    """Programs catch what Pydantic AI's own limiter raises at `max_queued`."""
    sem = FairSemaphore(backend, "models", 1, max_waiters=1)
    limiter = SemaphoreLimiter(sem)
    agent = Agent(ConcurrencyLimitedModel(upstream.model, limiter=limiter))
    runs = [in_background(agent.run("?")) for _ in range(2)]
    await until(lambda: upstream.running == 1, "one runs")
    await waiting(sem, 1)
    with pytest.raises(PermitsQueueFull) as full:
        await agent.run("?")
    is_both(full.value, QueueFull)
    assert full.value.max_waiters == 1
    await cancelled(*runs)
    await all_free(sem)


def is_both(error: AcquireTimeout | QueueFull, ours: type[Exception]) -> None:
    """*error* is one of *ours* and Pydantic AI's, with the facts of both, also when pickled."""
    assert isinstance(error, ours)
    assert isinstance(error, ConcurrencyLimitExceeded)
    assert type(error.__cause__) is ours
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.message, copy.name) == (str(error), "models") == (str(copy), error.name)


async def test_a_group_has_one_for_each_model(backend: MemoryBackend, upstream: Upstream) -> None:
    group = SemaphoreGroup(backend, "models", 1)
    model = ConcurrencyLimitedModel(upstream.model, limiter=SemaphoreLimiter(group))
    run = in_background(Agent(model).run("?"))
    its: AnySemaphore = group[f"model:{model.model_name}"]
    await available(its, 0)
    upstream.answers.set()
    await run
    await all_free(its)


def test_a_limiter_serves_several_loops_in_turn(sem: FairSemaphore) -> None:
    """As ``run_sync`` and each `asyncio.run` need it."""
    agent = Agent(TestModel(), max_concurrency=SemaphoreLimiter(sem))

    async def thrice() -> None:
        await asyncio.gather(*(agent.run("?") for _ in range(3)))
        await all_free(sem)

    for _ in range(3):
        asyncio.run(thrice())
