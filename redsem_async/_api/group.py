"""A semaphore for each tenant, domain or model."""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Unpack, cast
from urllib.parse import quote

from redsem_async._core import config
from redsem_async._core.config import GroupOptions

from .classes import FairSemaphore, Mutex, Semaphore
from .options import refuse_pickling, takes_options
from .semaphore import AnySemaphore

if TYPE_CHECKING:
    from .options import AnyRedis

LONGEST_NAME = config.MOST_BYTES // 2  # so that most keys fit behind it as they are
_PLAIN = "/:@+=, "  # beside letters, digits and `_.-~`: nothing that a pattern of names means
_MARK = "#"  # `quote` never leaves one, so no key can be taken for a digest
_HEAD = 64  # characters of a long key that stay readable


class SemaphoreGroup:
    """A semaphore for each key. ``group[key]`` is the semaphore of that key.

    Use it as ``async with group[tenant]: ...`` if the keys have nothing in common, such as
    domains or models. Every key has its own semaphore and queue. In a cluster the
    semaphores spread over the shards. There is no overall limit.

    For an overall limit *and* one for each key, or for a limit that keys share fairly, use the
    ``key`` of one ``FairSemaphore`` (``key_limit=``, ``share=True``), which checks both in one
    step. With two nested semaphores, a task would hold a permit of one while it waits for the
    other. For two kinds of keys, such as models and tenants, create a ``FairSemaphore`` for each
    model, with a key for each tenant.

    Any string is a safe key, even a raw header value. Characters that a name cannot have are
    percent-encoded as in URLs, and a key that is too long is replaced by its beginning and a
    digest. Different keys never share a semaphore.

    There may be millions of keys. A process keeps nothing for an idle name. Redis keeps two small
    keys for about four minutes, because a delayed command may still arrive, and then nothing.
    """

    @takes_options
    def __init__(
        self,
        redis: "AnyRedis",
        name: str,
        limit: int | Callable[[str], int],
        *,
        kind: type[AnySemaphore] = FairSemaphore,
        **options: Unpack[GroupOptions],
    ) -> None:
        """Create a group. Nothing is sent to Redis.

        Args:
            redis: any client of ``redis.asyncio``, or a ``MemoryBackend``.
            name: the beginning of every name, followed by a colon. 1 to 256 bytes, no braces.
            limit: of each semaphore, or a function that returns the limit for a key. It is
                called for each ``group[key]``.
            kind: the class of the semaphores.
            options: for every semaphore, as for ``AnySemaphore``. A ``rate`` applies to each key.

        Raises:
            ValueError, TypeError: for invalid arguments. The message says what to do.
        """
        given = cast("object", kind)
        if not (isinstance(given, type) and issubclass(given, Semaphore | FairSemaphore)):
            raise TypeError(f"kind must be Semaphore or FairSemaphore, not {kind!r}")
        if issubclass(kind, Mutex):
            raise TypeError("kind must be Semaphore or FairSemaphore; for mutexes, limit=1")
        self._client = redis
        self._name = config.text(name, "name", most=LONGEST_NAME)
        if callable(limit):
            config.check_function(limit, "limit")
        self._limit = limit
        self._kind = kind
        self._options = options
        example = self._made(name, self.declared_limit)  # raises for invalid arguments
        self._terms = example._terms  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, kind={self._kind.__name__})"

    def __getitem__(self, key: str) -> AnySemaphore:
        """Return the semaphore of *key*, a new object each time.

        Raises:
            TypeError: the key is not a string.
            ValueError, TypeError: the limit function returned no valid limit.
        """
        name = self.name_of(key)
        return self._made(name, self._limit(key) if callable(self._limit) else self._limit)

    def name_of(self, key: str) -> str:
        """Return the name of the semaphore of *key*, for ``redsem-async status`` and the like."""
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a key must be text, not {type(key).__name__}: use str(key)")
        written = quote(key, safe=_PLAIN, errors="surrogatepass")
        if len(self._name.encode()) + 1 + len(written) > config.MOST_BYTES:
            written = abridged(key, written)
        return f"{self._name}:{written}"

    @property
    def declared_limit(self) -> int:
        """The limit of each semaphore. 0 if a function returns it."""
        return 0 if callable(self._limit) else self._limit

    def _made(self, name: str, limit: int) -> AnySemaphore:
        return self._kind(self._client, name, limit, **self._options)


def abridged(key: str, written: str) -> str:
    """The beginning of *written*, and a digest of *key*."""
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return f"{written[:_HEAD]}{_MARK}{digest}"
