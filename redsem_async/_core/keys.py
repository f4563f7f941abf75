"""Names in Redis, that is, keys, channels, and the ids of hubs and permits.

One hash tag per semaphore puts all its keys into one slot, so that scripts may use them
together, and spreads many semaphores over the shards.
"""

import re
import secrets
from functools import cached_property
from typing import Literal, NamedTuple, cast, get_args

from .config import Clock

Mode = Literal[
    "fair",
    "fair+keys",
    "fair+share",
    "zset",
    "fair+slots",
    "fair+keys+slots",
    "fair+share+slots",
    "zset+slots",
    "fair+rate",
    "fair+keys+rate",
    "fair+share+rate",
    "fair+rate+slots",
    "fair+keys+rate+slots",
    "fair+share+rate+slots",
]
"""Fair without keys, fair with a limit for each key, fair with keys that also share the overall
limit, and zset. Each of them also with slots, and the fair ones also with rates."""

MODES: tuple[Mode, ...] = get_args(Mode)

_PERMIT_ID = re.compile(r"([0-9a-f]{32})\.([1-9][0-9]{0,15})\Z")


class _Address(NamedTuple):
    mode: Mode
    prefix: str
    name: str
    clock: Clock
    rates: tuple[str, ...] = ()


class Address(_Address):
    """Where a semaphore lives, in which mode and by which clock it is kept, and its *rates*."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key, in the order in which scripts are given them."""
        kinds: tuple[str, ...] = ("holders", "facts", "meta", "hubs", "limit", "queue")
        if self.keyed:
            kinds += ("uses", "lines", "ready", "key-limits", "ramps")
        if "+share" in self.mode:
            kinds += ("turns",)
        return tuple(f"{self.prefix}:{{{self.name}}}:{kind}" for kind in kinds)

    @property
    def held_keys(self) -> tuple[str, ...]:
        """The keys of a refresh, which exist while a permit is held."""
        kinds = ("holders", "facts", "meta", "hubs") + ("uses",) * self.keyed
        return tuple(f"{self.prefix}:{{{self.name}}}:{kind}" for kind in kinds)

    @cached_property
    def fair(self) -> bool:
        """Whether a request that does not fit blocks those behind it."""
        return self.mode.startswith("fair")

    @cached_property
    def keyed(self) -> bool:
        """Whether requests may have a key."""
        return "+keys" in self.mode or "+share" in self.mode

    @cached_property
    def slotted(self) -> bool:
        """Whether permits stand for slots."""
        return self.mode.endswith("+slots")

    @cached_property
    def rated(self) -> bool:
        """Whether rates hold up requests."""
        return "+rate" in self.mode

    @property
    def kind(self) -> str:
        """Mode, clock and the names of the rates, as kept in Redis. One name has one of each."""
        return f"{self.mode} {self.clock} {'+'.join(self.rates)}".rstrip()


def mode_with(mode: Mode, *, rates: bool = False, slots: bool = False) -> Mode:
    """The same mode, with rates, and for permits that stand for slots."""
    return cast("Mode", f"{mode}{'+rate' * rates}{'+slots' * slots}")


def channel(prefix: str, hub: str) -> str:
    """The channel of the push messages about a hub's permits and waiters.

    Where messages stay within a shard of a cluster, a semaphore is the *prefix* of its own.
    """
    return f"{prefix}:@{hub}"


def new_hub_id() -> str:
    """128 random bits, which is as hard to guess as a permit id has to be."""
    return secrets.token_hex(16)


def permit_id(hub: str, number: int) -> str:
    return f"{hub}.{number}"


def parse_permit_id(text: str) -> tuple[str, int] | None:
    """Hub and number of a permit id. None when *text* is none."""
    match = _PERMIT_ID.match(text)
    return (match[1], int(match[2])) if match else None
