"""The distribution of names over shards, by the slots of Redis Cluster."""

import random
from collections.abc import Sequence

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from redsem_async._core.keys import Address


def slot_of(name: str) -> int:
    """The slot of a semaphore's keys."""
    return key_slot(Address("fair", "redsem", name, "server").keys[0].encode())


def slots_of(names: int, rng: random.Random) -> list[int]:
    """The slots of random names."""
    return [slot_of(f"{rng.getrandbits(64):x}") for _ in range(names)]


def equal(names: int) -> list[float]:
    """Weights of equally busy names."""
    return [1.0] * names


def by_rank(names: int) -> list[float]:
    """Weights by rank: the second name is half as busy as the first, the third a third."""
    return [1 / rank for rank in range(1, names + 1)]


def worth(slots: Sequence[int], weights: Sequence[float], shards: int) -> float:
    """The throughput of *shards* shards in units of one, when the busiest is at full load.

    Each shard has an equal range of slots. Uneven names make the result smaller.
    """
    loads = [0.0] * shards
    for slot, weight in zip(slots, weights, strict=True):
        loads[slot * shards // REDIS_CLUSTER_HASH_SLOTS] += weight
    return sum(loads) / max(loads)
