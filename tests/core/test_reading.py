"""Whatever RESP3 a server writes, it is understood, ignored, or ends the connection."""

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

import redsem_async._protocol.operations as op
from redsem_async._core.keys import MODES, Address, Mode
from redsem_async._protocol.operations import SemaphoreRef
from redsem_async._protocol.replies import Reply
from redsem_async._protocol.status import Status
from redsem_async._redis.connection import Connection
from redsem_async._redis.dial import Opened
from redsem_async._redis.resp import ReplyReader, WireError
from tests.harness.peer import Heard, Wire

REQUESTS = [op.QueuedRequest(1, 1000, 1), op.QueuedRequest(2, 1000, 1)]
OPERATIONS: list[op.AnyOperation] = [
    *(op.Acquire([1, 2], 1000, 1, slots=[0]), op.Release("0" * 32, [1, 2]), op.Delete()),
    *(op.Refresh([1, 2], 1000), op.Abandon(REQUESTS), op.Heartbeat(1000, REQUESTS), op.Reap()),
    *(op.Adopt("0" * 32, 1, 2, 1000, slots=[0]), op.Detach(1, 1000), Status(10)),
    *(op.SetLimit(1), op.StartBackOff(100, 1)),
]
HUGE = 10**20


def one(sign: bytes, value: object) -> bytes:
    return sign + str(value).encode() + b"\r\n"


def bulk(text: bytes) -> bytes:
    return one(b"$", len(text)) + text + b"\r\n"


def several(sign: bytes, items: list[bytes]) -> bytes:
    return one(sign, len(items) // (2 if sign == b"%" else 1)) + b"".join(items)


whole = st.one_of(st.integers(-5, 5), st.sampled_from([2**53, 2**63 - 1, -(2**63)]))
words = st.sampled_from([b"", b"1", b"1+2", b"jobs", b"-1", b"9" * 400, b"0:1:1:1:1", b"\xff"])
errors = st.sampled_from(
    [
        *("ERR no", "NOSCRIPT", "READONLY", "SLOTS %ff", f"MOVED 1 a:{HUGE}"),
        *(f"ASK 1 a:{'9' * 5000}", f"LAYOUT 1 2 x {'9' * 400}"),
        f"MODE fair server {'9' * 5000} 1 1",
    ]
)
leaves = st.one_of(
    whole.map(lambda number: one(b":", number)),
    words.map(bulk),
    errors.map(lambda text: one(b"-", text)),
    st.sampled_from([b"_\r\n", b"#t\r\n", b",inf\r\n", b",nan\r\n", b",1.5\r\n", b"$-1\r\n"]),
    st.sampled_from([one(b"(", HUGE), b"=5\r\ntxt:a\r\n", b"+OK\r\n", b"*0\r\n", b"%0\r\n"]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=9).map(lambda items: several(b"*", items)),
        st.lists(inner, max_size=4).map(lambda items: several(b"~", items)),
        st.lists(inner, max_size=3).map(lambda items: several(b"%", items + items)),
    ),
    max_leaves=20,
)
plain = st.one_of(whole.map(lambda number: one(b":", number)), st.just(b"*0\r\n"))
answers = st.one_of(st.lists(values, max_size=14), st.lists(plain, max_size=8))
tagged = answers.map(lambda items: several(b"*", [bulk(b"1"), *items]))
kinds = st.sampled_from([b"message", b"smessage", b"subscribe", b"ssubscribe", b"sunsubscribe"])
named = st.tuples(kinds.map(bulk), st.lists(values, max_size=3))
pushes = st.one_of(st.lists(values, max_size=3), named.map(lambda pair: [pair[0], *pair[1]]))
wire = st.one_of(
    tagged, leaves, values, pushes.map(lambda items: several(b">", items)), st.binary()
)


async def reads(mode: Mode, operation: op.AnyOperation, data: bytes) -> Heard:
    """What a hub hears that waits for the reply to *operation*, and reads *data*."""
    heard = Heard()
    opened = Opened(Wire(), b"", None, True, None, ReplyReader(), None)
    connection = Connection(opened, heard)
    operation.semaphore = SemaphoreRef(Address(mode, "redsem", "jobs", "server"))
    connection.send([operation], 0.0)
    connection.data_received(several(b">", [bulk(b"ssubscribe"), bulk(b"x"), one(b":", 1)]))
    connection.data_received(data)
    return heard


@given(st.sampled_from(MODES), st.sampled_from(OPERATIONS), wire)
@example("zset", OPERATIONS[0], b">0\r\n")
@example("zset", OPERATIONS[0], b"%1\r\n*0\r\n:1\r\n")
@example("zset", OPERATIONS[0], b"%1\r\n:0\r\n$1\r\n1\r\n")
@example("zset", OPERATIONS[4], b"*2\r\n$1\r\n1\r\n:1\r\n")
@example("zset", OPERATIONS[0], b">3\r\n$8\r\nsmessage\r\n%0\r\n$1\r\nx\r\n")
@example("zset", OPERATIONS[0], b">2\r\n$8\r\nsmessage\r\n$1\r\nx\r\n")
def test_whatever_a_server_writes_has_a_known_outcome(
    mode: Mode, operation: op.AnyOperation, data: bytes
) -> None:
    """What leaves the connection's callback otherwise ends in the loop's exception handler."""
    heard = asyncio.run(reads(mode, operation, data))
    assert len(heard.lost) <= 1
    assert all(isinstance(error, WireError) for error in heard.lost)
    for reply in heard.replies:
        if isinstance(reply, Reply):
            held = isinstance(operation, op.Acquire | op.Heartbeat)
            told = [
                answer[0] if held and isinstance(answer, tuple) else answer
                for answer in reply.answers
            ]
            assert all(isinstance(number, int) for number in told)


declared = {
    each.__name__ for each in vars(op).values() if "script" in getattr(each, "__dict__", ())
}
assert {type(operation).__name__ for operation in OPERATIONS} == declared | {"Status"}
