"""The small Redis in memory does what a server does, as far as scripts can tell."""

import time
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ResponseError

from redsem_async.testing._redis import ErrorReply, MemoryRedis

ANY_COMMAND = "return redis.pcall(unpack(ARGV))"
NOTHING = "return redis.call('ZRANGEBYLEX', KEYS[1], '-', '+', 'LIMIT', -1, -1)"

KEYS = st.sampled_from(["a", "b"])
MEMBERS = st.sampled_from(["", "x", "y", "x!", "x\0", "é", "10", "9"])
SCORES = st.sampled_from(
    [
        *("0", "-1", "1", "2", "0.25", "1e3", "1.5"),
        *("4503599627370496", "1795653571659580", "-4503599627370497"),
    ]
)
BOUNDS = SCORES | SCORES.map("({}".format) | st.sampled_from(["-inf", "+inf"])
TEXTS = st.builds(str.__add__, st.sampled_from(["[", "("]), MEMBERS) | st.sampled_from(["-", "+"])
PLACES = st.integers(-3, 3).map(str)
LIMITS = st.just(()) | st.tuples(st.just("LIMIT"), st.integers(-1, 2).map(str), PLACES)
SCORED = st.sampled_from([(), ("WITHSCORES",)])


def command(name: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, ...]]:
    """A command with its key, and arguments that are texts or several at once."""

    def flat(found: tuple[Any, ...]) -> tuple[str, ...]:
        texts = ((part,) if isinstance(part, str) else part for part in found)
        return (name, *(text for part in texts for text in part))

    return st.tuples(KEYS, *parts).map(flat)


def some(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.tuples(*parts), min_size=1, max_size=3).map(
        lambda rows: tuple(text for row in rows for text in row)
    )


COMMANDS = st.one_of(
    *(command(name) for name in ("GET", "DEL", "PTTL", "HLEN", "ZCARD")),
    *(command(name, KEYS) for name in ("UNLINK", "EXISTS")),
    *(command(name, MEMBERS) for name in ("SET", "HGET", "ZSCORE")),
    *(command(name, some(MEMBERS)) for name in ("HMGET", "HDEL", "ZREM", "ZMSCORE")),
    command("HSET", some(MEMBERS, SCORES)),
    command("ZADD", some(SCORES | st.just("much"), MEMBERS)),
    command("ZCOUNT", BOUNDS, BOUNDS),
    command("ZRANGE", PLACES, PLACES, SCORED),
    command("ZRANGEBYSCORE", BOUNDS, BOUNDS, SCORED, LIMITS),
)
# Not so soon that the server's time matters.
LATER = st.sampled_from(["60000", "90000", "-5", "0"])
# Forms that no script uses. Where versions of Redis differ, such as in "0x10", there is none.
ODD = st.sampled_from(
    [
        *("nan", "inf", "-inf", "1_0", "-0", "01", "+1", "1.", ".5", "1e400", "", "(", "((1"),
        *("9223372036854775807", "9223372036854775808", "99999999999999999999", "-", "+", "["),
        *(
            "(nan",
            "[x",
            "-x",
            "limit",
            "LIMIT",
            "withscores",
            "WITHSCORES",
            "x",
            "0",
            "-1",
            "20000",
        ),
    ]
)
NAMES = (
    *("GET", "SET", "DEL", "UNLINK", "EXISTS", "PTTL", "HGET", "HMGET", "HGETALL", "HLEN", "HSET"),
    *("HDEL", "ZADD", "ZREM", "ZCARD", "ZSCORE", "ZRANK", "ZMSCORE", "ZCOUNT", "ZRANGE"),
    *("ZRANGEBYSCORE", "PUBLISH", "NOSUCH", "zcard"),
)


def wild(*names: str) -> st.SearchStrategy[tuple[str, ...]]:
    words = st.lists(ODD | MEMBERS | TEXTS, max_size=5)
    parts = st.tuples(st.sampled_from(names), KEYS, words)
    return parts.map(lambda found: (found[0], found[1], *found[2]))


SAME_SCORE = st.one_of(
    command("ZADD", some(st.just("0"), MEMBERS)),
    command("ZREM", some(MEMBERS)),
    command("ZLEXCOUNT", TEXTS, TEXTS),
    command("ZRANGEBYLEX", TEXTS, TEXTS, LIMITS),
    wild("ZLEXCOUNT", "ZRANGEBYLEX"),
)


def without_texts(reply: Any) -> Any:
    """With the codes of errors alone. Without one it was ERR, which redis-py leaves out."""
    if isinstance(reply, list):
        return [without_texts(part) for part in cast("Sequence[Any]", reply)]
    if not isinstance(reply, Exception):
        return reply
    first = str(reply).split()[0]
    return first if first.isupper() else "ERR"


class Both:
    """A server and the memory, which are to answer alike."""

    def __init__(self, url: str, prefix: str) -> None:
        self.server = Redis.from_url(url, protocol=2)
        self.published: list[tuple[bytes, bytes]] = []
        self.now_us = time.time_ns() // 1000
        self.memory = MemoryRedis(lambda: self.now_us, self._publish)
        self.prefix = prefix
        self.reset()

    def reset(self) -> None:
        self.server.delete(*(f"{self.prefix}{key}" for key in "abc"))
        self.memory.restore({})

    def _publish(self, channel: bytes, message: bytes) -> int:
        self.published.append((channel, message))
        return 0

    def script(self, text: str, *arguments: str) -> tuple[Any, Any]:
        """What the server and the memory reply, with the code of an error."""
        parts = [part.encode() for part in arguments]
        key = f"{self.prefix}a".encode()
        client: Any = self.server
        try:
            real = client.execute_command("EVAL", text, 1, key, *parts)
        except ResponseError as error:
            real = error
        try:
            ours = self.memory.eval(text, 1, key, *parts)
        except ErrorReply as error:
            ours = error
        return without_texts(real), without_texts(ours)

    def agree(self, commands: Sequence[tuple[str, ...]]) -> None:
        self.reset()
        for name, key, *rest in commands:
            arguments = [f"{self.prefix}{one}" if one in ("a", "b") else one for one in rest]
            real, ours = self.script(ANY_COMMAND, name, f"{self.prefix}{key}", *arguments)
            if name == "PTTL" and isinstance(real, int):  # its time goes on meanwhile
                real, ours = real // 1000, (ours - 1) // 1000
            assert ours == real, (name, key, *rest)


@pytest.fixture(scope="session")
def both(server_url: str) -> Both:
    return Both(server_url, "redsem-test-memory:{x}:")


@given(commands=st.lists(COMMANDS, max_size=30))
@settings(max_examples=150, deadline=None)
def test_commands_reply_as_a_server_does(both: Both, commands: list[tuple[str, ...]]) -> None:
    """Types, WRONGTYPE, order, scores as text, and empty values that vanish."""
    both.agree(commands)


@given(commands=st.lists(COMMANDS | wild(*NAMES) | command("PEXPIRE", ODD | LATER), max_size=30))
@settings(max_examples=150, deadline=None)
def test_what_no_script_sends_is_refused_or_done_as_on_a_server(
    both: Both, commands: list[tuple[str, ...]]
) -> None:
    """Odd numbers, bounds and options, too few arguments or too many."""
    both.agree(commands)


@given(commands=st.lists(SAME_SCORE, max_size=30))
@settings(max_examples=80, deadline=None)
def test_members_of_one_score_are_in_the_order_of_their_bytes(
    both: Both, commands: list[tuple[str, ...]]
) -> None:
    """Ranges by text are defined for equal scores only."""
    both.agree(commands)


@pytest.mark.parametrize(
    "text",
    [
        "return {1, 2.9, -2.9, 'x', true, false, 3}",
        "return {1, nil, 3}",
        "return {{}, {{1}}}",
        "return tostring(1795653571659580) .. tostring(0.1) .. tostring(2 ^ 53)",
        "return string.format('%.0f %.17g %d', 2 ^ 53, 0.1, 3)",
        "return #{unpack({1, 2, 3}, 2)}",
        "local t = {} for i = 1, 7000 do t[i] = i end return select('#', unpack(t))",
        "local t = {} for i = 1, 70000 do t[i] = i end return select('#', unpack(t))",
        "redis.call('ZADD', KEYS[1], 1.5, 'x') return redis.call('ZSCORE', KEYS[1], 'x')",
        "redis.call('ZADD', KEYS[1], 2 ^ 52 + 1, 'x') return redis.call('ZSCORE', KEYS[1], 'x')",
        "redis.call('SET', KEYS[1], 10 / 3) return redis.call('GET', KEYS[1])",
        "redis.call('SET', KEYS[1], 'x') return redis.call('ZCARD', KEYS[1])",
        "redis.call('SET', KEYS[1], 'x') return redis.pcall('ZCARD', KEYS[1])",
        "redis.call('SET', KEYS[1], 'x') return type(redis.pcall('ZCARD', KEYS[1]).err)",
        "return {redis.call('GET', KEYS[1]) == false, type(redis.call('HGETALL', KEYS[1]))}",
        "return redis.pcall('NOSUCH', KEYS[1]).err ~= nil",
        "return redis.error_reply('MODE fair 1 2')",
        "local said = redis.call('SET', KEYS[1], 'x') return type(said) .. said.ok",
        "return redis.call('SET', KEYS[1], 'x')",
        "return {ok = 'fine'}",
        "return {redis.status_reply('fine'), {ok = 'fine'}}",
        "return {redis.pcall('NOSUCH', KEYS[1]), {{err = 'BUSY x'}}, 1}",
        "redis.call('SET', KEYS[1], 'x') return {1, redis.pcall('ZCARD', KEYS[1]), 2}",
        "return {redis.pcall('GET'), redis.pcall(), redis.pcall(1)}",
        f"redis.call('ZADD', KEYS[1], 0, 'x') {NOTHING}",
        "redis.call('SET', KEYS[1], 'x') return redis.pcall('ZCOUNT', KEYS[1], 'x', 'y')",
        "return {redis.pcall('ZADD', KEYS[1], 'nan', 'x'), redis.pcall('ZADD', KEYS[1], '1')}",
        "return {redis.pcall('ZLEXCOUNT', KEYS[1], 'x', '+')}",
        "return {1 / 0, -1 / 0, 0 / 0, 2 ^ 63, -2 ^ 70}",
        "return nothing.at.all",
        "return redis.call('HSET', KEYS[1], 'x', true)",
        "return tonumber('') or 'none'",
        "return math.floor(-0.5) .. math.max(1, 2.5)",
        "return string.match('a:b', '^(%a):(%a)$')",
    ],
)
def test_scripts_reply_as_on_a_server(both: Both, text: str) -> None:
    """Numbers, nil, tables, errors and limits of Lua are those of Redis."""
    both.reset()
    real, ours = both.script(text)
    assert ours == real


def test_a_value_is_there_in_the_millisecond_of_its_expiry(both: Both) -> None:
    """And gone in the next."""
    both.reset()
    both.now_us = both.now_us // 1000 * 1000
    client: Any = both.server
    key = f"{both.prefix}a"
    both.memory.eval("redis.call('SET', KEYS[1], 'v') redis.call('PEXPIRE', KEYS[1], 5)", 1, key)
    both.now_us += 5999
    assert both.memory.command("EXISTS", key) == 1
    both.now_us += 1
    assert both.memory.command("EXISTS", key) == 0

    def now_ms() -> int:
        seconds, micros = client.time()
        return int(seconds * 1000 + micros // 1000)

    def was_there() -> bool:
        """Look at a server until it is too late, or it has a value in that millisecond."""
        client.set(key, "v", pxat=(expiry := now_ms() + 2))
        while (asked := now_ms()) <= expiry:
            if client.exists(key) and asked == expiry:
                return True
        return False

    assert any(was_there() for _ in range(300))


def test_messages_go_to_the_owner_of_the_memory(both: Both) -> None:
    both.published.clear()
    assert both.memory.eval("return redis.call('PUBLISH', 'there', 'text')", 0) == 0
    assert both.published == [(b"there", b"text")]
