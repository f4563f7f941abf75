"""What a change has done, in the same words for the command and for the dashboard."""

from collections.abc import Callable

from redsem_async._protocol.views import SemaphoreStatus

from .discovery import SemaphoreInfo


def limit_set(limit: int | None, before: SemaphoreInfo, after: SemaphoreStatus) -> str:
    """After `set_limit`. *before* is what Redis stored until then."""
    if limit is None:
        return f"set limit removed, {_own_limit(before)}"
    parts = [f"limit {limit:,}" if limit else "paused"]
    if before.set_limit not in (None, limit):
        parts.append(f"the set limit was {before.set_limit:,}")
    return "; ".join([*parts, *_still_held(after)])


def key_limit_set(key: str, limit: int | None) -> str:
    """After `set_limit` of *key*."""
    what = "set limit removed" if limit is None else f"limit {limit:,}" if limit else "paused"
    return f"key {key}: {what}"


def paused(before: SemaphoreInfo, after: SemaphoreStatus) -> str:
    """After `pause`."""
    found = [f"resume restores the set limit of {before.set_limit:,}"] if before.set_limit else []
    return "; ".join(["paused", *found, *_still_held(after)])


def resumed(before: SemaphoreInfo, after: SemaphoreStatus) -> str:
    """After `resume`."""
    limit = after.set_limit
    if before.set_limit != 0:
        return "not paused" + ("" if limit is None else f"; its set limit is {limit:,}")
    back = (
        _own_limit(before) if limit is None else f"limit {limit:,}, which was set before the pause"
    )
    return f"resumed; {back}"


def backed_off(seconds: float, key: str | None = None) -> str:
    """After `back_off`, of *key* if it is one of a key."""
    where = "" if key is None else f"key {key}: "
    if not seconds:
        return f"{where}back-off ended"
    return f"{where}no permit for {seconds:g} s, then the limit in force rises again"


def origin(age: float | None, by: str | None, words: Callable[[float], str]) -> str:
    """When a set limit or a back-off began, in *words* for seconds, and by whom, if known."""
    ago = "" if age is None else f" {words(age)} ago"
    return ago if by is None else f"{ago} by {by}"


REVOKED = "permit revoked"
DELETED = "deleted"


def _own_limit(before: SemaphoreInfo) -> str:
    declared = " or ".join(f"{limit:,}" for limit in before.declared)
    own = f" ({declared})" if declared else ""
    return f"the clients' own limit applies{own}"


def _still_held(after: SemaphoreStatus) -> list[str]:
    if after.held <= after.limit:
        return []
    are = "permit" if after.held == 1 else "permits"
    rest = [f"no new permit until fewer than {after.limit:,} are held"] if after.limit else []
    return [f"{after.held:,} {are} still held", *rest]
