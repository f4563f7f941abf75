"""Many names over several shards: balls in bins, by the slots that Redis Cluster really uses."""

import random
from collections.abc import Sequence

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from redsem_async._core.keys import Address


def slot_of(name: str) -> int:
    """The slot of a semaphore's keys."""
    return key_slot(Address("fair", "redsem", name, "server").keys[0].encode())


def slots_of(names: int, rng: random.Random) -> list[int]:
    """The slots of names that have nothing in common."""
    return [slot_of(f"{rng.getrandbits(64):x}") for _ in range(names)]


def equal(names: int) -> list[float]:
    """All names are as busy."""
    return [1.0] * names


def by_rank(names: int) -> list[float]:
    """The second name is half as busy as the first, the third a third."""
    return [1 / rank for rank in range(1, names + 1)]


def worth(slots: Sequence[int], weights: Sequence[float], shards: int) -> float:
    """How many shards' work *shards* do when the busiest of them has all that it can do.

    Each has an equal range of slots. The more unevenly the names fall, the less it is.
    """
    loads = [0.0] * shards
    for slot, weight in zip(slots, weights, strict=True):
        loads[slot * shards // REDIS_CLUSTER_HASH_SLOTS] += weight
    return sum(loads) / max(loads)
