"""Background work under a limit that holds for the whole fleet.

``throttled`` guards a function, ``ThrottledTaskGroup`` guards tasks, and ``throttled_map`` makes
one call for each of any number of items. The argument *sem* of each is a semaphore, or a
``SemaphoreGroup`` with a *key* that chooses from it.
"""

from ._decorator import throttled
from ._map import throttled_map
from ._task_group import ThrottledTaskGroup

__all__ = ["ThrottledTaskGroup", "throttled", "throttled_map"]
