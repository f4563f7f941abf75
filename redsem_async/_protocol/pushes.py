"""Push messages, which a store of semaphores sends to a hub unasked."""

from collections.abc import Sequence
from typing import NamedTuple

from .replies import Holding


class Granted(NamedTuple):
    """Waiters of this hub hold permits now."""

    name: str
    grants: Sequence[tuple[int, Holding]]


class Revoked(NamedTuple):
    """Another client released or adopted permits of this hub."""

    name: str
    numbers: Sequence[int]


class Recheck(NamedTuple):
    """Something may change earlier than was said, so ask again."""

    name: str


class Deleted(NamedTuple):
    """The semaphore was deleted."""

    name: str


Push = Granted | Revoked | Recheck | Deleted
