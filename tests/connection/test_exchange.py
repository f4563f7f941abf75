"""Commands, replies and messages of one connection: bytes out, bytes in, and what its hub hears.

`core/test_reading` has whatever else a server may write.
"""

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import Address
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import AnyOperation, SemaphoreRef
from redsem_async._protocol.pushes import Recheck
from redsem_async._protocol.replies import Reply
from redsem_async._redis.connection import CLOSING_TIME, Connection
from redsem_async._redis.dial import Opened
from redsem_async._redis.inquiry import Met
from redsem_async._redis.resp import ReplyReader
from tests.harness.peer import Heard, Wire, error, packed, push
from tests.worlds.simulated_time import simulated

JOBS, OTHERS = (Address("zset", "redsem", name, "server") for name in ("jobs", "others"))
PREFIX = f"redsem:@{Heard.hub_id}"


def shard(address: Address) -> str:
    """The channel of a semaphore of a cluster."""
    return f"redsem:{{{address.name}}}:@{Heard.hub_id}"


class Ends:
    """The two ends of a connection."""

    def __init__(
        self, *, sharded: bool = False, no_push: str | None = None, met: Met | None = None
    ) -> None:
        self.wire, self.heard = Wire(), Heard()
        opened = Opened(self.wire, b"", no_push, sharded, None, ReplyReader(), met)
        self.link = Connection(opened, self.heard)
        self.jobs = SemaphoreRef(JOBS)

    def send(self, *operations: AnyOperation, semaphore: SemaphoreRef | None = None) -> list[str]:
        """Send them. Returns the names of the commands that are written."""
        for each in operations:
            each.semaphore = semaphore or self.jobs
        self.link.send(operations, 1.0)
        return self.wire.names

    def hear(self, *data: bytes) -> list[str]:
        """Let it arrive. Returns the names of the commands that are written then."""
        self.link.data_received(b"".join(data))
        return self.wire.names

    def meet(self) -> None:
        """The first call of a script, which the server has."""
        self.send(op.Reap())
        subscribed = b"" if not self.link._push else push("subscribe", PREFIX, 1)
        self.hear(subscribed, reaped(1))
        self.heard.replies.clear()

    @property
    def kinds(self) -> list[ErrorKind | None]:
        """The kinds of the replies, None for one that is no error."""
        return [r.kind if isinstance(r, CommandError) else None for r in self.heard.replies]


def subscribed(others: SemaphoreRef) -> Ends:
    """Those of a cluster, where two semaphores have subscribed, each to a channel."""
    ends = Ends(sharded=True)
    for tag, semaphore in enumerate((ends.jobs, others), 1):
        assert ends.send(op.Reap(), semaphore=semaphore) == ["SSUBSCRIBE", "EVALSHA"]
        ends.hear(push("ssubscribe", shard(semaphore.address), 1), reaped(tag))
    return ends


def reaped(tag: int) -> bytes:
    """The reply to a Reap, or to a back-off."""
    return packed([str(tag), -1, 0, [], 1])


def released(tag: int) -> bytes:
    return packed([str(tag)])


def release() -> AnyOperation:
    return op.Release(Heard.hub_id, [1])


NO_SCRIPT = error("NOSCRIPT No matching script.")


# -- replies and messages


@simulated
async def test_replies_are_to_the_commands_in_their_order_and_messages_between_them() -> None:
    """However they are cut."""
    ends = Ends()
    ends.meet()
    ends.send(op.Reap(), release())
    data = reaped(2) + push("message", PREFIX, "recheck - jobs") + released(3)
    for i in range(len(data)):
        ends.hear(data[i : i + 1])
    assert [type(reply) for reply in ends.heard.replies] == [Reply, Reply]
    assert ends.heard.pushes == [("redsem", Recheck("jobs"))]
    assert ends.link.fresh_at == 1.0, "when the newest of them was sent"


@simulated
async def test_no_reply_is_taken_for_anothers() -> None:
    """It looks like a grant: a caller would take it, or get the reply of the caller before."""
    ends = Ends(no_push="none")
    ends.meet()
    ends.send(op.Acquire([7], 1000, 1))
    ends.hear(packed(["1", 1795000000000000]))
    assert (ends.heard.replies, len(ends.heard.lost)) == ([], 1)


@pytest.mark.fault(25)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(reaped(1), id="a reply to nothing"),
        pytest.param(push("unsubscribe", PREFIX, 0), id="a subscription that ends unasked"),
        pytest.param(b"?\r\n", id="no RESP"),
    ],
)
@simulated
async def test_what_cannot_be_trusted_ends_the_connection_once(data: bytes) -> None:
    ends = Ends()
    ends.hear(data, data)
    assert len(ends.heard.lost) == 1
    ends.link.eof_received()
    assert len(ends.heard.lost) == 1
    assert ends.wire.is_closing()
    assert not (ends.link.writable or ends.link.open)


@pytest.mark.parametrize(
    "parts",
    [
        ("message", "redsem:@another", "recheck - jobs"),
        ("message", PREFIX, "nonsense"),
        ("message", PREFIX),
        ("invalidate", [b"key"]),
    ],
)
@simulated
async def test_a_message_that_is_not_for_it_takes_no_replys_place(parts: Sequence[Any]) -> None:
    ends = Ends()
    ends.meet()
    ends.send(op.Reap())
    ends.hear(push(*parts), reaped(2))
    assert (ends.heard.pushes, ends.kinds, ends.heard.lost) == ([], [None], [])


@pytest.mark.parametrize("text", ["READONLY You can't write", "MASTERDOWN Link with MASTER is"])
@simulated
async def test_a_server_that_only_reads_is_left_when_the_command_knows(text: str) -> None:
    """The next connection is to the new master."""
    ends = Ends(no_push="none")
    ends.meet()
    ends.send(op.Reap(), op.Reap())
    ends.hear(error(text), reaped(3))
    assert ends.kinds == [ErrorKind.READ_ONLY]
    assert len(ends.heard.lost) == 1


@simulated
async def test_what_is_known_of_the_server_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert Ends(met=Met(uncounted=True)).link.uncounted
    assert not Ends(met=Met()).link.uncounted
    ends = Ends(no_push="the server does not speak RESP3")
    [reason] = ends.heard.mute
    assert str(reason) == "the server does not speak RESP3"
    assert ends.send(op.Reap()) == ["EVALSHA"], "and nothing is subscribed to"


# -- subscriptions


@pytest.mark.fault(26)
@simulated
async def test_it_subscribes_before_it_asks_and_once() -> None:
    """A grant before it would go unnoticed. One channel does for a prefix."""
    ends, others = Ends(), SemaphoreRef(OTHERS)
    assert ends.send(op.Reap()) == ["SUBSCRIBE", "EVALSHA"]
    ends.hear(push("subscribe", PREFIX, 1), reaped(1))
    assert ends.send(op.Reap(), semaphore=others) == ["EVALSHA"]


@simulated
async def test_in_a_cluster_each_semaphore_has_a_channel() -> None:
    """And no longer than this process uses it."""
    ends = subscribed(others := SemaphoreRef(OTHERS))
    ends.hear(push("smessage", shard(OTHERS), "recheck - others"))
    assert ends.heard.pushes.pop() == ("redsem", Recheck("others"))
    del others
    gc.collect()
    assert ends.send(op.Reap()) == ["SUNSUBSCRIBE", "EVALSHA"]
    ends.hear(push("smessage", shard(OTHERS), "recheck - others"))
    ends.hear(push("sunsubscribe", shard(OTHERS), 0), reaped(3))
    assert (ends.heard.pushes, ends.heard.gone, ends.heard.lost) == ([], [], [])
    assert ends.send(op.Reap(), semaphore=SemaphoreRef(OTHERS)) == ["SSUBSCRIBE", "EVALSHA"]


@pytest.mark.parametrize("text", ["NOPERM no channel", "BUSY a script runs", "MOVED 1 two:1"])
@simulated
async def test_an_unsubscription_that_is_refused_shifts_no_reply(text: str) -> None:
    ends = subscribed(others := SemaphoreRef(OTHERS))
    del others
    gc.collect()
    ends.send(op.Reap())
    ends.hear(error(text), reaped(3))
    assert (ends.kinds, ends.heard.lost) == ([None] * 3, [])


@simulated
async def test_a_slot_that_left_ends_a_subscription_and_no_other() -> None:
    """The server says so unasked, while the reply to the end of another is awaited."""
    ends = subscribed(others := SemaphoreRef(OTHERS))
    del others
    gc.collect()
    ends.send(op.Reap())  # with the end of the subscription that is not used any more
    ends.hear(push("sunsubscribe", shard(JOBS), 0))
    assert ends.heard.gone == [JOBS]
    ends.hear(error("BUSY a script runs"), reaped(3))
    assert (ends.kinds, ends.heard.lost) == ([None] * 3, [])
    assert ends.send(op.Reap()) == ["SSUBSCRIBE", "EVALSHA"]


@pytest.mark.parametrize("text", ["MOVED 1 two:1", "ASK 1 two:1", "TRYAGAIN", "CLUSTERDOWN"])
@simulated
async def test_a_subscription_that_belongs_elsewhere_is_made_again(text: str) -> None:
    """With the next command that goes there, if it does."""
    ends = Ends(sharded=True)
    ends.send(op.Reap())
    ends.hear(error(text), error(text))
    assert (ends.heard.gone, ends.heard.mute, ends.heard.lost) == ([JOBS], [], [])
    assert ends.send(op.Reap()) == ["SSUBSCRIBE", "EVALSHA"]


@simulated
async def test_a_subscription_that_is_denied_is_not_asked_for_again() -> None:
    ends = Ends(sharded=True)
    ends.send(op.Reap())
    ends.hear(error("NOPERM no channel"), reaped(1))
    assert len(ends.heard.mute) == 1
    assert ends.send(op.Reap(), semaphore=SemaphoreRef(OTHERS)) == ["EVALSHA"]


@pytest.mark.parametrize("text", ["BUSY a script runs", "LOADING the dataset"])
@simulated
async def test_a_server_that_is_busy_does_not_deny_a_subscription(text: str) -> None:
    """Another connection gets it."""
    ends = Ends()
    ends.send(op.Reap())
    ends.hear(error(text))
    assert (ends.heard.mute, len(ends.heard.lost)) == ([], 1)


@simulated
async def test_asking_lets_a_command_in_and_has_no_part_in_its_reply() -> None:
    """Nor does it subscribe where the semaphore has not arrived."""
    ends = Ends(sharded=True)
    ends.jobs.asking = True
    assert ends.send(op.Reap(), op.Reap()) == ["ASKING", "EVALSHA"] * 2
    ends.hear(b"+OK\r\n", reaped(1), error("ERR no cluster"), reaped(2))
    assert (ends.kinds, ends.heard.lost) == ([None] * 2, [])
    ends.jobs.asking = False
    assert ends.send(op.Reap()) == ["SSUBSCRIBE", "EVALSHA"]


# -- scripts


@pytest.mark.fault(29)
@simulated
async def test_after_one_that_the_server_lacks_each_script_has_its_text_once() -> None:
    """And the calls that found it out return to the hub, which writes them again."""
    ends = Ends(no_push="none")
    assert ends.send(release(), op.Reap()) == ["EVALSHA"] * 2, "it is taken to have all"
    ends.hear(NO_SCRIPT, NO_SCRIPT)
    assert ends.kinds == [ErrorKind.RETRY_NOW] * 2
    assert ends.send(op.Reap(), release(), release()) == ["EVAL", "EVAL", "EVALSHA"]


# -- the flow of bytes, and the end


@simulated
async def test_a_hub_waits_while_bytes_pile_up() -> None:
    ends = Ends()
    ends.link.pause_writing()
    assert not ends.link.writable
    ends.link.resume_writing()
    assert ends.link.writable
    assert ends.heard.resumed == 1
    ends.link.abort()
    ends.link.resume_writing()
    assert not ends.link.writable


@pytest.mark.parametrize("lingers", [False, True])
@simulated
async def test_closing_takes_a_second_at_most_and_is_no_loss(lingers: bool) -> None:
    ends = Ends()
    aborted: list[float] = []
    clock = asyncio.get_running_loop().time
    if lingers:  # a transport that has something left to write, for a server that reads nothing
        wire: Any = ends.wire
        wire.close, wire.abort = list[None], lambda: aborted.append(clock())
    began = clock()
    await ends.link.close()
    assert clock() - began == pytest.approx(CLOSING_TIME if lingers else 0.0, abs=0.001)
    assert len(aborted) == lingers
    assert ends.heard.lost == []


@simulated
async def test_what_came_with_the_handshake_is_read() -> None:
    heard, wire = Heard(), Wire()
    data = push("subscribe", PREFIX, 1) + push("unsubscribe", PREFIX, 0)
    Connection(Opened(wire, data, None, False, None, ReplyReader(), None), heard)
    assert len(heard.lost) == 1
