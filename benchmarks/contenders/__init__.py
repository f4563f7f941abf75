"""What is measured: this library and others, all behind one small protocol."""

from benchmarks.contenders._base import Contender, Library, Terms
from benchmarks.contenders._book import BOOK
from benchmarks.contenders._in_process import IN_PROCESS
from benchmarks.contenders._ours import FAIR, ZSET, Ours
from benchmarks.contenders._py_redis_semaphore import PY_REDIS_SEMAPHORE
from benchmarks.contenders._redis_lock import REDIS_LOCK
from benchmarks.contenders._self_limiters import SELF_LIMITERS
from benchmarks.contenders._steindamm import STEINDAMM

OURS = (FAIR, ZSET)
PEERS = (PY_REDIS_SEMAPHORE, STEINDAMM, SELF_LIMITERS, BOOK)
LIBRARIES = {library.label: library for library in (*OURS, *PEERS, REDIS_LOCK, IN_PROCESS)}

__all__ = [
    "BOOK",
    "FAIR",
    "IN_PROCESS",
    "LIBRARIES",
    "OURS",
    "PEERS",
    "PY_REDIS_SEMAPHORE",
    "REDIS_LOCK",
    "SELF_LIMITERS",
    "STEINDAMM",
    "ZSET",
    "Contender",
    "Library",
    "Ours",
    "Terms",
]
