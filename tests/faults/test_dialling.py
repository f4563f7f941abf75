"""A connection that ends while it is being made."""

from typing import Any, Literal

import pytest
from redis.asyncio import Redis

import redsem_async._redis.dial as dialling
from redsem_async._redis.dial import Target
from tests.harness.clients import Kind
from tests.harness.wait import takes_at_most, until

pytestmark = pytest.mark.one_mode


@pytest.mark.parametrize("end", ["reset", "closed"])
async def test_a_connection_that_ended_before_it_was_ours_is_noticed(
    kind: Kind, end: Literal["reset", "closed"], client_a: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was told to redis-py's reader, which nobody reads: nobody may wait for answers."""
    made: list[Any] = []
    connected = dialling._connected

    async def ended(target: Target, protocol: int) -> Any:
        connection = await connected(target, protocol)
        made.append(connection)
        if len(made) == 1:
            if end == "reset":
                connection._writer.transport.abort()
            else:
                await connection.send_command("QUIT")
                assert await connection.read_response() == b"OK"
            await until(connection._reader.at_eof, "its reader was told")
        return connection

    monkeypatch.setattr(dialling, "_connected", ended)
    with takes_at_most(0.2):
        permit = await kind(client_a, "jobs", 1).acquire()
    assert len(made) == 2
    assert await permit.release()
