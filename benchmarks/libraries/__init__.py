"""The measured libraries, this one included, behind one small protocol."""

from benchmarks.libraries._base import Library, OpenSemaphore, Options
from benchmarks.libraries._book import BOOK
from benchmarks.libraries._in_process import IN_PROCESS
from benchmarks.libraries._ours import FAIR, FAIR_LINGER, ZSET, ZSET_LINGER, OurSemaphore
from benchmarks.libraries._py_redis_semaphore import PY_REDIS_SEMAPHORE
from benchmarks.libraries._redis_lock import REDIS_LOCK
from benchmarks.libraries._self_limiters import SELF_LIMITERS
from benchmarks.libraries._steindamm import STEINDAMM

OURS = (FAIR, ZSET)
LINGERING = (FAIR_LINGER, ZSET_LINGER)
ALL_OURS = (*OURS, *LINGERING)
PEERS = (PY_REDIS_SEMAPHORE, STEINDAMM, SELF_LIMITERS, BOOK)
LIBRARIES = {library.label: library for library in (*ALL_OURS, *PEERS, REDIS_LOCK, IN_PROCESS)}

__all__ = [
    "ALL_OURS",
    "BOOK",
    "FAIR",
    "FAIR_LINGER",
    "IN_PROCESS",
    "LIBRARIES",
    "LINGERING",
    "OURS",
    "PEERS",
    "PY_REDIS_SEMAPHORE",
    "REDIS_LOCK",
    "SELF_LIMITERS",
    "STEINDAMM",
    "ZSET",
    "ZSET_LINGER",
    "Library",
    "OpenSemaphore",
    "Options",
    "OurSemaphore",
]
