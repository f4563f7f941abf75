"""Redis that refuses commands of scripts: the small one in memory, and a real server."""

from functools import cache
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.exceptions import ResponseError

from redsem_async.testing._embedded import EmbeddedRedis
from redsem_async.testing._redis import ErrorReply, MemoryRedis, RawArgument, Snapshot, SortedSet
from tests.scripts.in_memory import HUBS, InMemory

WRITES = ("HSET", "HDEL", "ZADD", "ZREM", "PEXPIRE", "SET", "DEL", "UNLINK")
REASONS = {
    "NOREPLICAS": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    "READONLY": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "OOM": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    **{each: (f"ACL SETUSER walker -{each}", f"ACL SETUSER walker +{each}") for each in WRITES},
}
FOR_GOOD = {*REASONS, "set_repl", "writes"} - {"PEXPIRE"}
"""What a server refuses. Of a write at one place, or a read, no server refuses it alone."""
_WRAPPER = Path(__file__).with_name("refusing.lua").read_text(encoding="utf-8")
_READ = """local found = redis.call('KEYS', '*')
for i, key in ipairs(found) do
  local kind = redis.call('TYPE', key).ok
  local how = { hash = { 'HGETALL', key }, zset = { 'ZRANGE', key, 0, -1, 'WITHSCORES' } }
  local has = redis.call(unpack(how[kind] or { 'GET', key }))
  found[i] = { key, kind, redis.call('PTTL', key), has }
end
return found"""


@cache
def _wrapped(text: str) -> str:
    return _WRAPPER.replace("--[[ the script stands here ]]", text)


class Refusing(MemoryRedis):
    """Refuses commands of a script.

    Attributes:
        refused: the position of the command in its script, a command's name, or ``writes``.
        ran: the commands of the last script of which none was to be refused.
    """

    refused: int | str = ""
    world: InMemory

    def __init__(self) -> None:
        super().__init__(lambda: self.world.server.now_us, self._published)
        self.ran: list[str] = []

    def _published(self, channel: bytes, message: bytes) -> int:
        return self.world.server.published(channel, message)

    def eval(self, script: str, *keys_and_arguments: RawArgument) -> Any:
        more = self.world.server.now_us, self.refused
        said, ran = self._evaluated(_wrapped(script), *keys_and_arguments, *more)
        if not self.refused:
            self.ran = [name.decode() for name in ran]
        return said

    def _evaluated(self, script: str, *keys_and_arguments: RawArgument) -> Any:
        return super().eval(script, *keys_and_arguments)


class RefusingServer(Refusing):
    """A real server, which may also be told to refuse for one of `REASONS`."""

    def __init__(self, server: EmbeddedRedis) -> None:
        super().__init__()
        self._admin = cast("Any", Redis.from_url(server.url))
        self._admin.execute_command(
            "ACL", "SETUSER", "walker", "on", "nopass", "~*", "&*", "+@all"
        )
        self._walker = cast("Any", Redis.from_url(server.url, username="walker", password=""))
        self._pushes = self._admin.pubsub(ignore_subscribe_messages=True)
        self._ends: dict[bytes, int] = {}

    def _evaluated(self, script: str, *keys_and_arguments: RawArgument) -> Any:
        begin, end = REASONS.get(str(self.refused), ("PING", "PING"))
        self._pushes.subscribe("end", *(f"p:@{hub}" for hub in HUBS if hub in self.world.present))
        self._admin.execute_command(*begin.split())
        try:
            return self._walker.eval(script, *keys_and_arguments)
        except ResponseError as error:
            raise ErrorReply(str(error)) from None
        finally:
            self._admin.execute_command(*end.split())
            self._admin.publish("end", "")
            for push in self._pushes.listen():
                if push["channel"] == b"end":
                    break
                self._published(push["channel"], push["data"])
            self._pushes.unsubscribe()

    def snapshot(self) -> Snapshot:
        found: Snapshot = {}
        for key, kind, left, has in self._admin.eval(_READ, 0):
            at = None if left < 0 else self.world.server.now_us // 1000 + left
            if at and abs(at - self._ends.get(key, 0)) < 1000:  # it is as it was, but time passes
                at = self._ends[key]
            value = has if kind == b"string" else dict(zip(has[::2], has[1::2], strict=True))
            if kind == b"zset":
                scores, value = value, SortedSet()
                for member, score in scores.items():
                    value.add(float(score), member)
            found[key] = value, at
        return found

    def restore(self, snapshot: Snapshot) -> None:
        self._ends = {key: at for key, (_, at) in snapshot.items() if at}
        pipe = self._admin.pipeline(transaction=False)
        pipe.flushdb()
        for key, (value, at) in snapshot.items():
            if isinstance(value, SortedSet):
                pipe.zadd(key, value.scores)
            elif isinstance(value, dict):
                pipe.hset(key, mapping=value)
            else:
                pipe.set(key, value)
            if at:
                pipe.pexpire(key, at - self.world.server.now_us // 1000)
        pipe.execute()
