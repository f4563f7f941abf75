"""The exceptions of this library, all of them.

One base class, and one class for each decision that a caller can make. Every error keeps its
facts as attributes, through copying and pickling too, and says what is true now.
"""

import math
from typing import Any, Self


class SemaphoreError(Exception):
    """Base of every error that this library raises on its own account."""

    _facts: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...], dict[str, Any]]:
        # Exceptions are rebuilt from `args` by default: the sentence, and for OSError's family
        # not even all of it. The rest are notes, and what else was put on it.
        return type(self), self._facts, self.__dict__


class AcquireTimeout(SemaphoreError, TimeoutError):
    """No permit became free in time; nothing is held.

    The server answered *full*, and the connection was not cut after that answer. A deadline that
    comes without such an answer raises :class:`BackendUnavailable`.

    Attributes:
        name: of the semaphore.
        waited: for how long, in seconds.
        retry_after: an estimate, in seconds, of when asking again is worth it; never negative.
    """

    def __init__(self, name: str, waited: float, retry_after: float = 0.0) -> None:
        super().__init__(f"no permit of {name!r} became free in {round(waited, 3)} s")
        self.name = name
        self.waited = waited
        self.retry_after = retry_after
        self._facts = (name, waited, retry_after)


class QueueFull(SemaphoreError):
    """As many callers wait already as ``max_waiters`` allows; nothing is held.

    Attributes:
        name: of the semaphore.
        max_waiters: the bound that was reached.
        retry_after: an estimate, in seconds, of when asking again is worth it; never negative.
    """

    def __init__(self, name: str, max_waiters: int, retry_after: float = 0.0) -> None:
        super().__init__(f"{max_waiters} callers wait for a permit of {name!r} already")
        self.name = name
        self.max_waiters = max_waiters
        self.retry_after = retry_after
        self._facts = (name, max_waiters, retry_after)


class PermitLost(SemaphoreError):
    """A permit is not ours any more, or cannot be trusted to be.

    Attributes:
        name: of the semaphore.
        permit_id: of the permit; kept out of the message, since whoever knows it can release it.
        reason: why, in a few words.
    """

    def __init__(self, name: str, permit_id: str, reason: str) -> None:
        super().__init__(f"a permit of {name!r} was lost: {reason}")
        self.name = name
        self.permit_id = permit_id
        self.reason = reason
        self._facts = (name, permit_id, reason)


class ModeMismatch(SemaphoreError):
    """The name is in use by another class, or with another clock.

    A name stays taken for some minutes after its last use. `clear` of the class that has it
    frees it at once.

    Attributes:
        name: of the semaphore.
        wanted: mode and clock of this client, as in ``"fair server"``.
        found: mode and clock in use.
        held: whether somebody holds a permit; None when not known.
        unused: whether nobody holds a permit or waits for one: no process has asked for anything
            of late. False while that is not known.
        free_in: seconds until the name is free, unless it is used again; None when not known.
    """

    def __init__(
        self,
        name: str,
        wanted: str,
        found: str,
        held: bool | None = None,  # noqa: FBT001 - facts are pickled by position
        unused: bool = False,  # noqa: FBT001, FBT002
        free_in: float | None = None,
    ) -> None:
        theirs, ours = _class_of(found, beside=wanted), _class_of(wanted, beside=found)
        advice = "use one class and one clock for a name"
        if held is False:
            advice = "nobody holds a permit of it"
            if unused:
                advice += " or waits for one"
            advice += " now: "
            if free_in is not None:
                seconds = math.ceil(free_in)
                advice += f"unless it is used again the name is free in at most {seconds} s, and "
            advice += f"{_call(found)}.clear() frees it at once"
        super().__init__(
            f"{name!r} is in use as a {theirs}, and this client has it as a {ours}; {advice}"
        )
        self.name = name
        self.wanted = wanted
        self.found = found
        self.held = held
        self.unused = unused
        self.free_in = free_in
        self._facts = (name, wanted, found, held, unused, free_in)


_CLASSES = {"fair": "FairSemaphore", "zset": "Semaphore"}


def _class_of(kind: str, *, beside: str) -> str:
    """The class for *kind*, and its clock where *beside* has another one."""
    mode, _, clock = kind.partition(" ")
    known = _CLASSES.get(mode, mode)
    return known if clock == beside.partition(" ")[2] else f"{known} with clock={clock!r}"


def _call(kind: str) -> str:
    mode, _, clock = kind.partition(" ")
    options = "..., clock='local'" if clock == "local" else "..."
    return f"{_CLASSES.get(mode, mode)}({options})"


class SemaphoreClosed(SemaphoreError):
    """``aclose`` was called while this caller waited; nothing is held.

    Attributes:
        name: of the semaphore.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} was closed in this process")
        self.name = name
        self._facts = (name,)


class BackendError(SemaphoreError):
    """Redis refused: a wrong type, a missing permission, no memory.

    ``__cause__`` is redis-py's error.

    Attributes:
        name: of the semaphore.
        detail: what Redis said.
    """

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name!r}: {detail}")
        self.name = name
        self.detail = detail
        self._facts = (name, detail)


class BackendUnavailable(BackendError, ConnectionError):
    """Redis could not be asked: unreachable, loading, busy, read-only or failing over.

    Whether anything was free is not known; nothing is held.
    """
