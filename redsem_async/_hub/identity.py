"""How the servers know this process, by a hub's id and the numbers that it draws."""

import asyncio
import random
from typing import Protocol

from redsem_async._core.keys import new_hub_id

from .model import Lease


class Blocked(Protocol):
    """Knows when the event loop was blocked."""

    def blocked_for(self, lease: Lease) -> float | None:
        """How long it was blocked when trust in *lease* ended. None if it ran."""
        ...


class HubIdentity:
    """The part of a hub that everything below it needs.

    Attributes:
        loop: the event loop that the hub belongs to.
        id: names the hub in Redis. It is new after the hub was idle.
        usable: False in a forked child, where the connections and permits are the parent's.
        closing: whether ``aclose`` is under way.
        admitted: whether a login of this client has succeeded. A rejection may pass then.
        warned_of_no_push: whether the log has it that no push messages come.
        stalls: when the event loop was blocked. The refresher notes it.
        last_number: that was drawn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.id: str = new_hub_id()
        self.usable: bool = True
        self.closing: bool = False
        self.admitted: bool = False
        self.warned_of_no_push: bool = False
        self.stalls: Blocked
        self.last_number: int = 0

    def renew(self) -> None:
        """Take a new id. Permits of the old one are no longer this process's."""
        self.id = new_hub_id()

    def new_number(self) -> int:
        """Draw a number for a request or a call when it is written, so in the wire's order."""
        self.last_number += 1
        return self.last_number

    def stagger(self, time: float) -> float:
        """Once to twice *time*, at random, so that no two processes act at once."""
        return time * (1 + random.random())

    def drew(self, number: int) -> bool:
        """Whether *number* was drawn here."""
        return number <= self.last_number
