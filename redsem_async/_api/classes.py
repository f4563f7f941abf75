"""The semaphore classes."""

import math
from collections.abc import Callable
from types import EllipsisType
from typing import TYPE_CHECKING, Unpack

from redsem_async._core import config
from redsem_async._core.errors import AcquireTimeout
from redsem_async._core.keys import Mode
from redsem_async._protocol.operations import KeyTerms, SetLimit

from .arguments import names_the_class
from .awaitables import Acquisition
from .bound import Bound
from .options import Options
from .permit import Permit
from .semaphore import AnySemaphore
from .status import SemaphoreStatus

if TYPE_CHECKING:
    from .backends import Client


class Semaphore(AnySemaphore):
    """A counting semaphore shared by all processes that use its name: mode ``zset``.

    Never more than ``limit`` permits are held. A request that fits when it comes is granted at
    once; of those that wait, the oldest that fits is next. So a request for several permits may
    starve behind lighter ones, where ``FairSemaphore`` has them wait for it. A release may serve
    waiters of its own process first, while the oldest request has waited for less than 50 ms.

    It descends from the counting semaphore of *Redis in Action*, 6.3, which keeps its holders in
    a sorted set. Here each operation is one atomic script that uses the clock of the server.
    """

    _mode: Mode = "zset"


class FairSemaphore(AnySemaphore):
    """A semaphore that serves first come, first served, across all processes: mode ``fair``.

    Never more than ``limit`` permits are held. Every request draws a ticket from a counter that
    only increases, and permits are granted strictly in that order: no waiter starves, and the
    request of a crashed process is skipped.

    It descends from the fair semaphore of *Redis in Action*, 6.3. Here each operation is one
    atomic script: no second process can enter between drawing a ticket and ranking it, a failed
    request leaves no entry, and the timeout of one caller does not apply to others.
    """

    _mode: Mode = "fair"

    @names_the_class
    def __init__(
        self,
        redis: "Client",
        name: str,
        limit: int | None = None,
        *,
        key_limit: int | Callable[[str], int | None] | None = None,
        share: bool = False,
        weight: float | Callable[[str], float] = 1.0,
        patience: float | None = None,
        max_waiters_per_key: int | None = None,
        prefix: str = "redsem",
        **options: Unpack[Options],
    ) -> None:
        """Make a semaphore. Nothing is sent to Redis.

        Args:
            redis: any client of ``redis.asyncio``, or a ``MemoryBackend``.
            name: of the semaphore; the same in every process. 1 to 512 bytes, no braces.
            limit: the number of permits that may be held at the same time, in all.
            key_limit: the number of permits that requests with the same ``key`` may hold at the
                same time, or a function of the key, which returns None for a key without a limit.
                A limit set with ``set_limit(key=)`` overrides it.
            share: whether the next permit goes to the key with the fewest permits in use for its
                *weight*, and not to the oldest request.
            weight: the weight of a key with *share*, or a function of the key; finite and above
                0. One below a millionth counts as a millionth, one above a million as a million.
            patience: seconds that a request waits with *share*, before it goes by its age; a
                lease by default. So no request starves.
            max_waiters_per_key: the number of requests with the same ``key`` in the queue from
                which on ``acquire`` raises ``QueueFull``.
            prefix: the first part of the keys in Redis. All clients of a name use the same.
            options: as `AnySemaphore` takes them.

        Raises:
            ValueError, TypeError: for invalid arguments; the message says what to do.
        """
        self._share = config.flag(share, "share")
        if self._share or key_limit is not None:
            self._mode = "fair+share" if self._share else "fair+keys"
        elif max_waiters_per_key is not None:
            raise ValueError("max_waiters_per_key needs key_limit or share=True")
        super().__init__(redis, name, limit, prefix=prefix, **options)
        most = max_waiters_per_key
        if most is not None:
            most = config.whole(most, "max_waiters_per_key", 0)
            self._terms = self._terms._replace(max_waiters_per_key=most)
        self._key_limit = key_limit
        if callable(key_limit):
            config.check_function(key_limit, "key_limit")
        elif key_limit is not None:
            config.whole(key_limit, "key_limit", 0)
        if callable(weight):
            config.check_function(weight, "weight")
        self._weight = weight if callable(weight) else config.weight_of(weight)
        if (weight != 1.0 or patience is not None) and not self._share:
            raise ValueError("weight and patience need share=True")
        patience = self.lease if patience is None else config.patience_of(patience)
        self._patience_ms = math.ceil(1000 * patience)

    @property
    def keyed(self) -> bool:
        """Whether requests may have a key."""
        return self._address.keyed

    def acquire(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        ahead: float = 0.0,
        key: str | None = None,
    ) -> Acquisition:
        """Wait for a permit: ``await`` it, or use it as ``async with sem.acquire() as permit``.

        If the caller is cancelled while it waits, its request is removed; if the grant was already
        in flight, the permit is given back within a round trip.

        Args:
            timeout: seconds to wait, instead of the ``timeout`` of the semaphore; ``None`` for
                ever, 0 to return at once.
            permits: how many permits to acquire. They are held and released as one.
            cancel_on_loss: instead of that of the semaphore.
            ahead: a head start: the request gets the place in the queue that one would have
                which came so many seconds earlier; 0 to 3,600. Because it is finite, requests
                without one are served at last, too.
            key: text of 1 to 512 bytes, such as a tenant. The permit counts against the limit in
                all and against the limit of this key. Requests that only their own key holds up
                do not hold up requests of other keys.

        Raises:
            AcquireTimeout: no permit became free in time; ``blocked_by`` says which limit was
                full.
            QueueFull: the queue already has ``max_waiters`` waiters, or ``max_waiters_per_key``
                of this key.
            ModeMismatch: the name is in use by another class, or with another clock.
            LayoutMismatch: the name is in use by a version of this library with another layout
                of the keys.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendUnavailable: Redis was unavailable at the deadline; without a deadline, for
                longer than a lease.
            BackendError: Redis rejected the command.
            ValueError, TypeError: for invalid arguments, at the call, before it is awaited.
        """
        terms = None if key is None else self._terms_of(key, permits)
        if ahead != 0.0:
            ahead = config.ahead_of(ahead)
        return self._acquisition(timeout, permits, cancel_on_loss, ahead, terms)

    async def try_acquire(self, *, permits: int = 1, key: str | None = None) -> Permit | None:
        """Return a permit if one is free now, or ``None`` when the semaphore, or *key*, is full.

        Raises:
            BackendUnavailable: Redis is unavailable, so whether a permit is free is unknown.
            ModeMismatch, BackendError: as for ``acquire``.
        """
        try:
            return await self.acquire(timeout=0, permits=permits, key=key)
        except AcquireTimeout:
            return None

    async def status(
        self, max_entries: int = 100, *, keys_after: str | None = None
    ) -> SemaphoreStatus:
        """Read the limit, the holders, the waiters and the keys, all at the same moment.

        Args:
            max_entries: the maximum number of holders to list, of waiters, and of keys.
            keys_after: list the keys after this one: the last one of the list before.
        """
        most = config.whole(max_entries, "max_entries", 0)
        after = None if keys_after is None else config.key_of(keys_after)
        return self._status_of(await self._read(most, after))

    def _declared_limit(self, key: str) -> int | None:
        limit = self._key_limit
        try:
            return limit(key) if callable(limit) else limit
        except LookupError:  # of a key that others use, and this client does not know
            return None

    async def set_limit(self, limit: int | None, *, key: str | None = None) -> None:
        """Set a limit that overrides the limits that clients declare; ``None`` removes it.

        Redis keeps it without an expiry. A higher limit grants permits to waiters at once. A
        lower limit takes no permit away. 0 pauses the semaphore, or the key.

        Redis loses it with its other state, and nothing restores it, not even
        ``recovery="grace"``: so 0 is a pause, not a safety lock.

        Args:
            limit: the number of permits that may be held at the same time.
            key: the key whose limit it is; by default it is the overall limit.
        """
        if key is None:
            await super().set_limit(limit)
            return
        if limit is not None:
            limit = config.whole(limit, "limit", 0)
        self._check_key(key)
        await self._bound().remote.call(SetLimit(limit, key=key))

    async def hold_off(self, seconds: float, *, key: str | None = None) -> None:
        """Grant no permit for *seconds*, in any process; 0 ends a back-off that runs.

        As for every semaphore, see ``AnySemaphore.hold_off``.

        Args:
            seconds: from now on, at most a day.
            key: the key whose requests are held off; by default all are.
        """
        if key is None:
            await super().hold_off(seconds)
            return
        self._check_key(key)
        limit = self._declared_limit(key)
        await self._hold_off(seconds, self.limit if limit is None else limit, key)

    def _bind(self) -> Bound:
        bound = super()._bind()
        limit = self._key_limit
        bound.remote.state.introduction.declared_of_keys = None if callable(limit) else limit
        return bound

    def _check_key(self, key: str) -> None:
        if not self.keyed:
            raise ValueError(f"{type(self).__name__}: key= needs key_limit= or share=True")
        config.key_of(key)

    def _terms_of(self, key: str, permits: int) -> KeyTerms:
        """What this client declares for *key*."""
        self._check_key(key)
        limit, weight = self._key_limit, self._weight
        if callable(limit):
            limit = limit(key)
            if limit is not None:
                limit = config.whole(limit, f"key_limit({key!r})", 0)
        if limit and permits > limit:
            raise ValueError(f"permits must be at most the key_limit of {limit}, not {permits}")
        if callable(weight):
            weight = config.weight_of(weight(key))
        return KeyTerms(key, limit, weight, self._patience_ms if self._share else 0)


def takes_keys(semaphore: object) -> bool:
    """Whether requests of *semaphore* may have a key."""
    return isinstance(semaphore, FairSemaphore) and semaphore.keyed


class Mutex(FairSemaphore):
    """A ``FairSemaphore`` with a limit of 1: one holder at a time, in order."""

    @names_the_class
    def __init__(
        self, redis: "Client", name: str, *, prefix: str = "redsem", **options: Unpack[Options]
    ) -> None:
        if "limit" in options:
            raise TypeError("the limit of a Mutex is 1: for another limit, use FairSemaphore")
        super().__init__(redis, name, 1, prefix=prefix, **options)
