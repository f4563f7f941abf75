"""The semaphore classes."""

import math
from collections.abc import Callable
from types import EllipsisType
from typing import TYPE_CHECKING, TypeGuard, Unpack

from redsem_async._core import config
from redsem_async._core.errors import AcquireTimeout
from redsem_async._core.keys import Mode
from redsem_async._protocol.operations import KeyTerms, SetLimit
from redsem_async._protocol.status import SemaphoreStatus

from .arguments import forgotten_key, names_the_class
from .awaitables import Acquisition
from .bound import Bound
from .options import Options
from .permit import Permit
from .semaphore import AnySemaphore

if TYPE_CHECKING:
    from .backends import AnyRedis


class Semaphore(AnySemaphore):
    """A counting semaphore shared by all processes that use its name.

    Never more than ``limit`` permits are held. A request that fits when it arrives is granted at
    once. The next waiter is the oldest that fits. A request for several permits may therefore
    starve behind smaller ones, which a ``FairSemaphore`` would make wait. A release may serve
    waiters of its own process first, while the oldest request has waited for less than 50 ms.

    Its mode is ``zset``. It is based on the counting semaphore of *Redis in Action*, 6.3, which
    keeps its holders in a sorted set. Here each operation is one atomic script that uses the
    server's clock.
    """

    _mode: Mode = "zset"


class FairSemaphore(AnySemaphore):
    """A semaphore that grants permits first come, first served, across all processes.

    Never more than ``limit`` permits are held. Every request draws a ticket from a counter that
    only increases, and permits are granted strictly in that order. No waiter starves, and a
    crashed process's request is skipped.

    Its mode is ``fair``. It is based on the fair semaphore of *Redis in Action*, 6.3. Here each
    operation is one atomic script. No other process can intervene between drawing a ticket and
    ranking it, a failed request leaves no entry, and one caller's timeout does not apply to
    others.
    """

    _mode: Mode = "fair"

    @names_the_class
    def __init__(
        self,
        redis: "AnyRedis",
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
        """Create a semaphore. Nothing is sent to Redis.

        Args:
            redis: any client of ``redis.asyncio``, or a ``MemoryBackend``.
            name: of the semaphore, the same in every process. 1 to 512 bytes, no braces.
            limit: maximum number of permits held at once, for all keys together. With 0 it is
                paused for this client, whose requests wait until ``set_limit`` sets a higher one.
            key_limit: maximum number of permits that one ``key`` holds at once, or a function of
                the key, which returns None for a key without a limit. A limit set with
                ``set_limit(key=)`` overrides it.
            share: whether the next permit goes to the key with the fewest permits in use for its
                *weight*, and not to the oldest request.
            weight: a key's weight with *share*, or a function of the key. Finite and above 0.
                Weights below a millionth count as a millionth, and those above a million as a
                million.
            patience: seconds after which a waiting request goes first with *share*, so that none
                starves. By default the semaphore's *timeout*, or six leases if that is None or 0.
                Without a key it is always a lease.
            max_waiters_per_key: number of waiting requests of one ``key`` at which ``acquire``
                raises ``QueueFull``.
            prefix: first part of the keys in Redis. All clients of a name use the same.
            options: as for `AnySemaphore`.

        Raises:
            ValueError, TypeError: for invalid arguments. The message says what to do.
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
        if patience is None:  # longer than a queue usually is old, because it switches share off
            patience = min(self.timeout or 6 * self.lease, config.LONGEST_LEASE)
        self._patience_ms = math.ceil(1000 * config.patience_of(patience))

    @property
    def keyed(self) -> bool:
        """Whether requests may have a key."""
        return self._keyed

    def acquire(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        ahead: float = 0.0,
        key: str | EllipsisType | None = ...,
    ) -> Acquisition:
        """Wait for a permit: ``await`` it, or use it as ``async with sem.acquire() as permit``.

        If the caller is cancelled while it waits, its request is removed. If the grant was already
        in flight, the permit is released within a round trip.

        Args:
            timeout: seconds to wait, instead of the semaphore's ``timeout``. ``None`` waits
                forever, 0 returns at once.
            permits: how many permits to acquire. They are held and released together.
            cancel_on_loss: instead of the semaphore's.
            ahead: head start in seconds, 0 to 3,600. The request joins the queue as if it had
                arrived that much earlier. Requests without a head start don't starve.
            key: string of 1 to 512 bytes, such as a tenant. The permit counts against the overall
                limit and against this key's. A request blocked only by its key's limit does not
                block other keys. A semaphore with ``key_limit`` or ``share`` requires it, or
                ``None`` for a request without a key.

        Raises:
            AcquireTimeout: no permit became free in time. ``blocked_by`` says which limit was
                full, and ``retry_after`` estimates when to retry.
            QueueFull: the queue already has ``max_waiters`` waiters, or ``max_waiters_per_key``
                of this key. Also has ``retry_after``.
            PermitLost: the permit was lost in the block of ``async with``.
            SlotsMismatch: the name is in use with another list of slots.
            LayoutMismatch: the name is in use by a version of this library with another layout
                of the keys.
            ModeMismatch: the name is in use by another class, with another clock, or with keys
                by clients that declare none. The two errors above are subclasses.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendUnavailable: Redis was unavailable at the deadline, or without a deadline for
                longer than a lease.
            BackendError: Redis rejected the command. ``BackendUnavailable`` is a subclass.
            ValueError, TypeError: for invalid arguments, or if a required *key* is missing. Raised
                by the call itself, before it is awaited.
        """
        if key is ...:
            if self._keyed:
                raise forgotten_key()
            key = None
        terms = None if key is None else self._terms_of(key, permits)
        if ahead != 0.0:
            ahead = config.ahead_of(ahead)
        return self._acquisition(timeout, permits, cancel_on_loss, ahead, terms)

    async def try_acquire(
        self, *, permits: int = 1, key: str | EllipsisType | None = ...
    ) -> Permit | None:
        """Return a permit if one is free now, or ``None`` when the semaphore, or *key*, is full.

        If the caller is cancelled, a permit that was granted meanwhile is released.

        Raises:
            BackendUnavailable: Redis is unavailable, so whether a permit is free is unknown.
            ModeMismatch, SemaphoreClosed, BackendError, TypeError: as for ``acquire``.
        """
        try:
            return await self.acquire(timeout=0, permits=permits, key=key)
        except AcquireTimeout:
            return None

    async def status(
        self, max_entries: int = 100, *, keys_after: str | None = None
    ) -> SemaphoreStatus:
        """Read the limit, the holders, the waiters and the keys, all at the same moment.

        Cancelling the caller changes nothing.

        Args:
            max_entries: the maximum number of holders to list, of waiters, and of keys.
            keys_after: list the keys after this one, which is the last of the previous list.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        most = config.whole(max_entries, "max_entries", 0)
        after = None if keys_after is None else config.key_of(keys_after)
        return (await self._read(most, after)).status

    def _declared_limit(self, key: str) -> int | None:
        limit = self._key_limit
        try:
            return limit(key) if callable(limit) else limit
        except LookupError:  # of a key that others use, and this client does not know
            return None

    async def set_limit(self, limit: int | None, *, key: str | None = None) -> None:
        """Set a limit that overrides all declared limits. ``None`` removes it.

        Redis keeps it without an expiry. A higher limit grants permits to waiters at once. A
        lower limit revokes no permit. 0 pauses the semaphore, or the key.

        If Redis loses its data, nothing restores the set limit. A limit of 0 is therefore a pause
        and not a safety lock.

        If the caller is cancelled, a command that was already sent may take effect.

        Args:
            limit: maximum number of permits held at once.
            key: the key whose limit to set. By default the overall limit is set.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
            ValueError, TypeError: for invalid arguments.
        """
        if key is None:
            await super().set_limit(limit)
            return
        if limit is not None:
            limit = config.whole(limit, "limit", 0)
        self._check_key(key)
        await self._bound().remote.call(SetLimit(limit, key=key))

    async def back_off(self, seconds: float, *, key: str | None = None) -> None:
        """Grant no permits for *seconds*, in any process. 0 ends a back-off.

        Requests keep their places, held permits are not affected, and grants then ramp up to the
        limit, as in every semaphore.

        If the caller is cancelled, a command that was already sent may take effect.

        Args:
            seconds: from now on, at most a day.
            key: the key whose requests wait. By default all do.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
            ValueError, TypeError: for an invalid number of seconds, or a key where there are none.
        """
        if key is None:
            await super().back_off(seconds)
            return
        self._check_key(key)
        await self._back_off_for(seconds, key)

    def _bind(self) -> Bound:
        bound = super()._bind()
        limit = self._key_limit
        bound.remote.introduction.declared_of_keys = None if callable(limit) else limit
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


def takes_keys(semaphore: object) -> TypeGuard[FairSemaphore]:
    """Whether requests of *semaphore* may have a key."""
    return isinstance(semaphore, FairSemaphore) and semaphore.keyed


class Mutex(FairSemaphore):
    """A ``FairSemaphore`` with a limit of 1, for one holder at a time.

    ``set_limit`` pauses it with 0, and refuses more than 1.
    """

    @names_the_class
    def __init__(
        self, redis: "AnyRedis", name: str, *, prefix: str = "redsem", **options: Unpack[Options]
    ) -> None:
        if "limit" in options:
            raise TypeError("the limit of a Mutex is 1: for another limit, use FairSemaphore")
        super().__init__(redis, name, 1, prefix=prefix, **options)

    async def set_limit(self, limit: int | None, *, key: str | None = None) -> None:
        """Set a limit of 0 or 1, as in every semaphore. ``None`` removes it.

        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
            ValueError, TypeError: for an invalid limit, such as one above 1.
        """
        if limit is not None and config.whole(limit, "limit", 0) > 1:
            raise ValueError(f"the limit of a Mutex is at most 1, not {limit}: use FairSemaphore")
        await super().set_limit(limit, key=key)
