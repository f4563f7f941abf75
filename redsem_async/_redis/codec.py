"""Operations as the commands of one semaphore, and what comes back."""

import time
from collections.abc import Callable
from typing import Any

from redsem_async._core.keys import Address
from redsem_async._protocol.operations import AnyOperation, Argument, Refresh
from redsem_async._protocol.replies import MISFITS

from .resp import invalid_reply
from .scripts import Script, script


class Codec:
    """The scripts of one semaphore.

    *wall_clock* gives microseconds, for semaphores that are kept by their clients' clocks.
    """

    def __init__(
        self, address: Address, wall_clock: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self.address = address
        self.prefix: str = address.prefix
        self.shard: str = address.keys[0].removesuffix(":holders")
        self._keys: tuple[Argument, ...] = (len(address.keys), *address.keys)
        held = address.held_keys
        self._held_keys: tuple[Argument, ...] = (len(held), *held)
        self._kind = address.kind
        self._wall_clock = None if address.clock == "server" else wall_clock

    def encode(  # positional, because a keyword costs time and this is called for each command
        self,
        operation: AnyOperation,
        tag: int,
        hub: str,
        sharded: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Script, tuple[Argument, ...]]:
        """Return the script for *operation*, and the number of its keys, the keys, its arguments.

        With *sharded* its push messages stay within the shard of a cluster.
        """
        keys = self._held_keys if isinstance(operation, Refresh) else self._keys
        clock = self._wall_clock() if self._wall_clock else ""
        own = operation.arguments(self.address)
        found: Script = script(self.address.mode, operation.script, sharded)
        return found, (*keys, tag, clock, self._kind, hub, *own)

    def reply_to(self, command: AnyOperation, raw: Any) -> Any:
        """Return the reply to *command*. Raises `WireError` if *raw* is none."""
        try:
            if raw[:1] == [b"%d" % command.tag]:
                return command.reply(raw, self.address)
        except MISFITS as error:
            raise invalid_reply("the server's reply does not fit its command") from error
        raise invalid_reply("the server's reply belongs to another command")
