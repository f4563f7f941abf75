"""What a semaphore waits for, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from redsem_async._integrations import changed
from redsem_async._integrations.discovery import SemaphoreInfo
from redsem_async._protocol.status import BackOff, Client, SemaphoreStatus

from ._stalled import Stalled

LEAST = 0.1  # seconds that are told apart
TROUBLE = ("error", "stalled", "paused", "backoff", "waiting")  # states, the worst first


@dataclass(frozen=True, slots=True)
class State:
    """A state of a semaphore.

    Attributes:
        code: for the style of the page.
        label: in one or two words.
        text: one sentence.
    """

    code: str
    label: str
    text: str


def state_of(
    info: SemaphoreInfo,
    status: SemaphoreStatus | None,
    error: str | None,
    stalled: Sequence[Stalled],
) -> State:
    """Why requests wait, if they do."""
    if status is None:
        return State("error", "unreadable", f"It cannot be read: {error}.")
    limit = limit_of(info, status)
    if status.set_limit == 0:
        state = State("paused", "paused", _paused(status))
    elif status.back_off is not None:
        state = State("backoff", "backing off", _backing_off(status, status.back_off))
    else:
        state = _in_use(info, status, limit)
    if stalled:
        sentence = f"{stalled_text(stalled[0])} {state.text}"
        return State("stalled", "stalled", sentence)
    return state


def stalled_text(stalled: Stalled) -> str:
    """What has stalled, and what becomes free when."""
    signs = "refreshing. The first of its permits expires"
    if not stalled.holds:
        signs = "sending heartbeats. Its requests leave the queue"
    return f"{name_of(stalled.client)} has stopped {signs} in {duration(stalled.left)}."


def lost_text(set_limit: int | None, *, backs_off: bool) -> str | None:
    """What is gone with the data of Redis, of the limit that was set. None if there was none."""
    if set_limit is not None:
        what = f"The set limit of {set_limit:,}" if set_limit else "The pause"
    elif backs_off:
        what = "The back-off"
    else:
        return None
    return f"{what} was lost with Redis's data."


def name_of(client: Client) -> str:
    """A process as an operator knows it."""
    return client.label or f"{client.host or 'A process'}, pid {client.pid or '?'}"


def _in_use(info: SemaphoreInfo, status: SemaphoreStatus, limit: int | None) -> State:
    if status.waiting:
        return _waiting(info, status, limit)
    if limit is not None and status.held >= limit:
        more = status.held - limit
        text = f"{_all(limit)}, and no request waits."
        if more:
            text = f"{status.held:,} permits are in use, {more:,} above the limit of {limit:,}."
        return State("full", "full", text)
    if status.held:
        return State(
            "free", "free", f"{count(_free(status, limit), 'permit is', 'permits are')} free."
        )
    return State("idle", "idle", "No permit is in use.")


def _backing_off(status: SemaphoreStatus, back_off: BackOff) -> str:
    text = f"No permit is granted for another {duration(back_off.seconds_left)}."
    if back_off.ramp:
        many = count(back_off.ramp, "permit", "permits")
        text = f"After a back-off, {many} may be in use for now. The ramp doubles up to the limit."
    if origin := changed.origin(back_off.age, back_off.by, duration):
        text += f" The back-off was started{origin}."
    if status.waiting:
        text += f" {count(status.waiting, 'request waits', 'requests wait')}."
    return text


def _paused(status: SemaphoreStatus) -> str:
    text = "No permit is granted until it is resumed."
    if status.waiting:
        text += f" {count(status.waiting, 'request waits', 'requests wait')}."
    if status.held:
        text += f" {count(status.held, 'permit is', 'permits are')} still held."
    return text


def _waiting(info: SemaphoreInfo, status: SemaphoreStatus, limit: int | None) -> State:
    free = _free(status, limit)
    if free <= 0:
        text = _all(limit or 0)
        if limit is not None and status.held > limit:
            text = f"{status.held:,} permits are in use, above the limit of {limit:,}"
        if status.retry_after:
            text += f". A new request would wait {_about(status.retry_after)}"
        return State("waiting", "queuing", f"{text}.")
    head = status.waiters[0] if status.waiters else None
    if head is not None and head.permits > free and info.fair and not info.keyed:
        rest = count(free, "is", "are")
        text = f"The first request needs {head.permits:,} permits, and {rest} free."
        return State("waiting", "head waits", text)
    if info.keyed:
        text = "Permits are free, but the waiting requests' keys are at their limits."
        return State("keys", "keys full", text)
    return State(
        "serving", "being served", "Permits are free for the next requests whose limits allow it."
    )


def _about(seconds: float) -> str:
    return duration(seconds) if seconds < LEAST else f"about {duration(seconds)}"


def _all(limit: int) -> str:
    return "The only permit is in use" if limit == 1 else f"All {limit:,} permits are in use"


def limit_of(info: SemaphoreInfo, status: SemaphoreStatus) -> int | None:
    """The limit in force, the highest if clients declare different ones. None if unknown."""
    if status.set_limit is not None:
        return min(status.set_limit, len(info.slots)) if info.slots else status.set_limit
    return max(info.declared, default=None)


def _free(status: SemaphoreStatus, limit: int | None) -> int:
    return 0 if limit is None else limit - status.held


def count(number: int, one: str, many: str) -> str:
    """*number* with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def duration(seconds: float) -> str:
    """*seconds* in a suitable unit."""
    if seconds < LEAST:
        return f"less than {LEAST} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
