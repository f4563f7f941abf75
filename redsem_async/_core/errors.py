"""All exceptions of this library.

One base class, and one class for each decision that a caller can make. Every error has its facts
as attributes and keeps them through copying and pickling. Its message says what is true now.
"""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

BlockedBy = Literal["limit", "key", "paused", "back_off", "rate"]
"""What blocked a request."""
_BLOCKED_BY: dict[BlockedBy, str] = {
    "limit": "",
    "key": ": its key is at its limit",
    "paused": ": the semaphore is paused",
    "back_off": ": a back-off is in progress",
    "rate": ": the rate is used up",
}


class SemaphoreError(Exception):
    """Base class of the errors of this library."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default exceptions are rebuilt from `args`, which has the message, and for subclasses
        # of OSError only a part of it. `__dict__` has the facts, and notes.
        return _bare, (type(self),), {**self.__dict__, "args": self.args}


E = TypeVar("E", bound=SemaphoreError)


def _bare(kind: type[E]) -> E:
    return kind.__new__(kind)


class SemaphoreFull(SemaphoreError):
    """No permit was free, and Redis said so. Nothing is held.

    Base class of ``AcquireTimeout`` and ``QueueFull``. Catch it unless you treat them differently.

    Attributes:
        name (str): the semaphore's name.
        retry_after (float): an estimate of the seconds until a retry may succeed. Never negative.
    """

    def __init__(self, name: str, retry_after: float = 0.0) -> None:
        super().__init__(f"no permit of {name!r} is free")
        self.name = name
        self.retry_after = retry_after


@dataclass(eq=False, repr=False)
class AcquireTimeout(SemaphoreFull, TimeoutError):
    """No permit became free in time. Nothing is held.

    The server replied *full*, and the connection stayed open after that reply. Without such a
    reply, the deadline raises ``BackendUnavailable``.

    Attributes:
        name (str): the semaphore's name.
        waited (float): how long the caller waited, in seconds. 0 with ``timeout=0``.
        retry_after (float): an estimate of the seconds until a retry may succeed. Never negative.
        blocked_by (BlockedBy): what blocked the request. ``"limit"`` is the semaphore's limit,
            ``"key"`` is the key's, ``"paused"`` is a set limit of 0, ``"back_off"`` the pause of
            a back-off or its limit in force, and ``"rate"`` a rate that is used up.
        nested (bool): whether the calling task holds a permit itself, and may wait for it forever.
    """

    name: str
    waited: float
    retry_after: float = 0.0
    blocked_by: BlockedBy = "limit"
    nested: bool = False

    def __post_init__(self) -> None:
        permit, reason = f"permit of {self.name!r}", _BLOCKED_BY[self.blocked_by]
        if self.nested:
            reason += "; this task already holds one"
        text = f"no {permit} is free"
        if self.waited:
            reason += ", and may be waiting for itself" if self.nested else ""
            text = f"timed out after {round(self.waited, 3)} s waiting for a {permit}"
        super(SemaphoreFull, self).__init__(f"{text}{reason}")


@dataclass(eq=False, repr=False)
class QueueFull(SemaphoreFull):
    """The queue already has ``max_waiters`` waiters. Nothing is held.

    Attributes:
        name (str): the semaphore's name.
        max_waiters (int): the limit of the queue that was reached.
        retry_after (float): an estimate of the seconds until a retry may succeed. Never negative.
        for_key (bool): whether that is ``max_waiters_per_key``, for the request's key.
    """

    name: str
    max_waiters: int
    retry_after: float = 0.0
    for_key: bool = False

    def __post_init__(self) -> None:
        bound = "max_waiters_per_key" if self.for_key else "max_waiters"
        text = f"the queue of {self.name!r} is full: {bound}={self.max_waiters}"
        super(SemaphoreFull, self).__init__(text)


@dataclass(eq=False, repr=False)
class PermitLost(SemaphoreError):
    """The permit is no longer held, or the process cannot be sure that it is.

    Attributes:
        name (str): the semaphore's name.
        permit_id (str): the permit's id. The message does not contain it, because any client
            that knows the id can release the permit.
        reason (str): why, in a few words.
    """

    name: str
    permit_id: str
    reason: str

    def __post_init__(self) -> None:
        super().__init__(f"a permit of {self.name!r} was lost: {self.reason}")


@dataclass(eq=False, repr=False)
class ModeMismatch(SemaphoreError):
    """The name is in use with another class or clock, or other use of keys, slots or rates.

    A name keeps its class and clock until some minutes after its last use. Calling ``delete`` on a
    semaphore of the class that is in use frees the name immediately.

    Attributes:
        name (str): the semaphore's name.
        wanted (str): mode and clock of this client, such as ``"fair server"``, and the names of
            its rates. The mode ``"fair"`` means ``FairSemaphore``, ``"zset"`` means ``Semaphore``.
        found (str): mode and clock in use. Of a ``LayoutMismatch``, both are numbers of layouts.
        held (bool | None): whether a permit is held. None when not known.
        unused (bool): whether no permit is held, no request waits, and no process has sent a
            request recently. False if unknown.
        free_in (float | None): seconds until the name is free unless it is used again, if known.
    """

    name: str
    wanted: str | int
    found: str | int
    held: bool | None = None
    unused: bool = False
    free_in: float | None = None

    def __post_init__(self) -> None:
        found, wanted = str(self.found), str(self.wanted)
        advice = (
            "all clients of a name need the same class and clock, either all or none of them use"
            " keys or slots, and their rates have the same names"
        )
        if self.held is False:
            advice = f"no permit is held{' and no request waits' if self.unused else ''} now: "
            if self.free_in is not None:
                left = f"{math.ceil(self.free_in)} s"
                advice += f"the name is free in at most {left} unless it is used again, and "
            advice += f"{_call(found)}.delete() frees it immediately"
        theirs, ours = _class_of(found, other=wanted), _class_of(wanted, other=found)
        text = f"{self.name!r} is in use as a {theirs}, but this client uses it as a {ours}"
        super().__init__(f"{text}; {advice}")


class LayoutMismatch(ModeMismatch):
    """The name is in use by a version of this library that keeps another layout in Redis.

    Nothing was changed. A name keeps its layout until some minutes after its last use, and every
    process that uses it needs a version with that layout.

    Attributes:
        name (str): of the semaphore.
        found (int): the layout in use. 0 for versions from before layouts had numbers.
        own (int): this client's layout, also as ``wanted``.
        versions (tuple[str, ...]): known versions of the library in processes that use the name.
        free_in (float | None): seconds until the name is free unless it is used again, if known.
    """

    def __init__(
        self,
        name: str,
        found: int,
        own: int,
        versions: Sequence[str] = (),
        free_in: float | None = None,
    ) -> None:
        others = f" (used by redsem-async {', '.join(versions)})" if versions else ""
        older = "this process" if found > own else "the processes that use it"
        free = "some minutes after its last use"
        if free_in is not None:
            free = f"in at most {math.ceil(free_in)} s unless it is used again"
        SemaphoreError.__init__(
            self,
            f"{name!r} is stored in layout {found}{others}, but this client has"
            f" layout {own}: upgrade redsem-async in {older}; the name is free {free}",
        )
        self.name: str = name
        self.own: int = own
        self.free_in: float | None = free_in
        self.wanted: int = own  # type: ignore[mutable-override]
        self.found: int = found  # type: ignore[mutable-override]
        self.versions: tuple[str, ...] = tuple(versions)


class SlotsMismatch(ModeMismatch):
    """The name is in use with other slots.

    While permits are held or requests wait, all clients of a name must have the same slots, or
    one list must be a prefix of the other. A semaphore that is not in use accepts any slots.

    Attributes:
        name (str): the semaphore's name.
        wanted (str): the slots of this client, such as ``"a, b"``.
        found (str): the slots in use.
    """

    def __init__(self, name: str, wanted: str, found: str) -> None:
        SemaphoreError.__init__(
            self,
            f"{name!r} is in use with the slots {found}, but this client has"
            f" {wanted}; one list must be a prefix of the other, and must contain the slots of any"
            " permit it adopts",
        )
        self.name: str = name
        self.wanted: str = wanted  # type: ignore[mutable-override]
        self.found: str = found  # type: ignore[mutable-override]


_CLASSES = {
    "fair": "FairSemaphore",
    "fair+keys": "FairSemaphore with key_limit",
    "fair+share": "FairSemaphore with share=True",
    "zset": "Semaphore",
}


def _class_of(kind: str, *, other: str) -> str:
    """The class for *kind*, and its clock if it is another than that of *other*."""
    (mode, clock, rates), (_, other_clock, _) = map(_parts_of, (kind, other))
    base, *more = re.split(r"\+(?=rate|slots)", mode)
    known = _CLASSES.get(base, base)
    parts = known.split(" with ", 1)[1:]
    if rates:
        names = rates.split("+")
        parts.append(f"the rate{'s' * (len(names) > 1)} {', '.join(map(repr, names))}")
    parts += ["slots"] * ("slots" in more)
    parts += [f"clock={clock!r}"] * (clock != other_clock)
    named = known.partition(" with ")[0]
    return f"{named} with {' and '.join(parts)}" if parts else named


def _parts_of(kind: str) -> tuple[str, str, str]:
    """Mode, clock, and the names of the rates."""
    mode, _, more = kind.partition(" ")
    clock, _, rates = more.partition(" ")
    return mode, clock, rates


def _call(kind: str) -> str:
    mode, clock, _ = _parts_of(kind)
    options = "..., clock='local'" if clock == "local" else "..."
    return f"{_CLASSES.get(mode.partition('+')[0], mode).partition(' ')[0]}({options})"


class SemaphoreClosed(SemaphoreError):
    """``aclose`` closed the semaphore in this process. Nothing is held.

    Attributes:
        name (str): the semaphore's name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"semaphore {name!r} was closed in this process")
        self.name = name


class BackendError(SemaphoreError):
    """Redis rejected a command, for example because a permission is missing.

    ``BackendUnavailable`` is a subclass, so handle it first.

    ``__cause__`` is the error of redis-py.

    Attributes:
        name (str): the semaphore's name.
        detail (str): the text of the error reply.
    """

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name!r}: {detail}")
        self.name = name
        self.detail = detail


class BackendUnavailable(BackendError, ConnectionError):
    """Redis is unreachable, loading, busy, read-only or failing over.

    Whether a permit was free is not known. Nothing is held.
    """


def unreachable(error: BaseException) -> str | None:
    """Why no connection could be made, in words. None for any other error."""
    text = str(error)
    if number := re.match(r"Error (\d+) connecting to |.*\[Errno (\d+)\] Connect call", text):
        if "SSL" in text:
            return text.rpartition("[")[2].rstrip(".")
        return os.strerror(int(number[1] or number[2])).lower()
    named = re.match(r"Error -\d+ connecting to \S+\. (.+?)\.?\Z", text)
    return named[1].lower() if named else None
