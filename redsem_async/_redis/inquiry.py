"""What a server is asked when it is met. Whether it evicts keys, and what its scripts lack.

One trip before the first command, because what a hub says of itself depends on the answers.
"""

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import AuthenticationError

from redsem_async._core.keys import Address, channel
from redsem_async._protocol.errors import ErrorKind

from .faults import command_error
from .resp import RawPush, ReplyReader, connection_error, pack

# A message to oneself, and what else scripts do that some servers refuse.
_PROBE = """
local receivers = redis.pcall(ARGV[1], ARGV[2], '-')
if type(receivers) ~= 'number' then receivers = -1 end
return { receivers, redis.pcall('TIME').err or '', redis.set_repl and 1 or 0 }
"""


class Asker(NamedTuple):
    """The hub *hub* asks, which has a semaphore at *address*."""

    hub: str
    address: Address


class Met(NamedTuple):
    """What is known of a server."""

    evicts: str | None = None  # by which policy it evicts keys, if it says that it does
    uncounted: bool = False  # scripts are told of no receiver of a message, although there is one
    no_time: str = ""  # why scripts cannot ask for the time, if so
    no_set_repl: bool = False  # scripts cannot keep a message from being replicated

    @property
    def worked_around(self) -> Sequence[str]:
        """What it lacks, in words."""
        lacks = {
            "PUBLISH does not count subscribers": self.uncounted,
            f"scripts cannot call TIME ({self.no_time})": self.no_time,
            "scripts have no redis.set_repl": self.no_set_repl,
        }
        return [words for words, lacking in lacks.items() if lacking]


async def inquire(
    asker: Asker,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    replies: ReplyReader,
    *,
    push: bool,
    sharded: bool,
) -> Met | None:
    """Ask, and wait for the answers. None where it has to be asked again, or another node.

    *push* says whether push messages can come, *sharded* whether they stay within a shard.
    """
    key = asker.address.keys[0]
    own = channel(key.removesuffix(":holders") if sharded else asker.address.prefix, asker.hub)
    slots = deque(("memory", "subscribed", "probe") if push else ("memory", "probe"))
    writer.write(pack(("INFO", "memory")))
    if push:
        writer.write(pack(("SSUBSCRIBE", own)) if sharded else pack(("SUBSCRIBE", own)))
    writer.write(pack(("EVAL", _PROBE, 1, key, "SPUBLISH" if sharded else "PUBLISH", own)))
    answers: dict[str, Any] = {}
    while slots:
        data = await reader.read(65536)
        if not data:
            raise connection_error("the server closed the connection")
        for item in replies.feed(data):
            confirmed = isinstance(item, RawPush) and item.kind in (b"subscribe", b"ssubscribe")
            if slots and (confirmed or not isinstance(item, RawPush)):
                answers[slots.popleft()] = item
    return _met(**answers)


def _met(memory: Any, probe: Any, subscribed: Any = None) -> Met | None:
    evicts = _eviction(memory) if isinstance(memory, bytes) else None
    if isinstance(probe, AuthenticationError):
        raise probe
    if isinstance(probe, Exception):
        refused = command_error(probe).kind is ErrorKind.REFUSED
        return Met(evicts) if refused else None
    receivers, no_time, set_repl = probe
    uncounted = isinstance(subscribed, RawPush) and receivers == 0
    return Met(evicts, uncounted, no_time.decode(errors="replace"), not set_repl)


def _eviction(memory: bytes) -> str | None:
    limit = re.search(rb"maxmemory:(\d+)", memory)
    policy = re.search(rb"maxmemory_policy:([\w-]+)", memory)
    if limit is None or policy is None or limit[1] == b"0" or policy[1] == b"noeviction":
        return None
    return policy[1].decode()
