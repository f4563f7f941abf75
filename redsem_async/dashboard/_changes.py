"""The changes that an operator may make. Each is logged, with who made it."""

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from redsem_async._api.classes import FairSemaphore
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._api.status import SemaphoreStatus
from redsem_async._core import config
from redsem_async._core.errors import BackendUnavailable, SemaphoreError
from redsem_async._core.keys import parse_permit_id
from redsem_async._integrations.discovery import find
from redsem_async._redis.stored import READ_ERRORS

from ._access import CHANGES, Access, forgery
from ._views import short
from ._words import count

logger = logging.getLogger("redsem_async.dashboard")

MAX_BODY = 10_000  # bytes


class Refused(Exception):
    """Nothing was changed; *status* is that of the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator asks for.

    Attributes:
        action: one of `CHANGES`.
        name: of the semaphore.
        limit: the new limit; None removes it.
        key: whose limit it is; None for the limit in all.
        permit: the id of the permit to revoke.
    """

    action: str
    name: str
    limit: int | None = None
    key: str | None = None
    permit: str | None = None


async def change(request: Request, access: Access, redis: Any, prefix: str) -> str:
    """Make the change that *request* asks for; returns what was done, in words.

    Raises:
        Refused: nothing was changed.
    """
    if (why := forgery(request)) is not None:
        raise Refused(403, f"Nothing was changed: {why}.")
    wanted = _change_of(await _body(request))
    who = await access.who(request, wanted.action, wanted.name)
    if who is None:
        asked = {"event": "change refused", "semaphore": wanted.name, "action": wanted.action}
        logger.warning("%r: %s was refused", wanted.name, wanted.action, extra=asked)
        raise Refused(403, "You may not do that.")
    try:
        text = await _make(wanted, redis, prefix)
    except (BackendUnavailable, *READ_ERRORS) as error:
        raise Refused(
            503, f"Redis does not answer: whether it was done is unknown ({error})."
        ) from error
    except SemaphoreError as error:
        raise Refused(502, f"Redis refused it: {error}.") from error
    facts: dict[str, object] = {
        "event": "changed",
        "semaphore": wanted.name,
        "action": wanted.action,
        "who": who,
        "limit": wanted.limit,
        "key": wanted.key,
    }
    what = wanted.action
    if wanted.action == "set_limit":
        what = f"set_limit {wanted.limit}" + (
            "" if wanted.key is None else f" of key {wanted.key!r}"
        )
    elif wanted.permit is not None:
        what = f"kick {short(wanted.permit)}"
    logger.info("%r: %s by %r", wanted.name, what, who, extra=facts)
    return text


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise Refused(413, "The request is too long.")
    try:
        data: object = json.loads(body)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise Refused(400, "The request is not a JSON object.")
    return data  # pyright: ignore[reportUnknownVariableType]


def _change_of(data: dict[str, Any]) -> Change:
    action, name, limit = data.get("action"), data.get("name"), data.get("limit")
    key, permit = data.get("key"), data.get("permit")
    if action not in CHANGES:
        raise Refused(400, f"There is no such action: one of {', '.join(CHANGES)}.")
    try:
        name = config.text(name, "name")
        key = None if key is None else config.key_of(key)
        if limit is not None:
            limit = config.whole(limit, "limit", 0)
    except (TypeError, ValueError) as error:
        raise Refused(400, f"Nothing was changed: {error}.") from error
    if action == "set_limit" and "limit" not in data:
        raise Refused(400, "Nothing was changed: a limit is needed, or null to remove it.")
    if action == "kick" and (not isinstance(permit, str) or parse_permit_id(permit) is None):
        raise Refused(400, "Nothing was changed: that is not the id of a permit.")
    return Change(action, name, limit, key, permit if action == "kick" else None)


async def _make(wanted: Change, redis: Any, prefix: str) -> str:
    info = await find(redis, prefix, wanted.name)
    if info is None:
        raise Refused(404, f"There is no semaphore named {wanted.name!r}: nothing was changed.")
    semaphore = info.semaphore(redis, prefix, keyed=wanted.key is not None, label="dashboard")
    do: dict[str, Callable[[AnySemaphore, Change], Awaitable[str]]] = {
        "set_limit": _set_limit,
        "pause": _pause,
        "resume": _resume,
        "kick": _kick,
        "clear": _clear,
    }
    if wanted.key is not None and info.mode is not None and not info.keyed:
        raise Refused(400, "Nothing was changed: the requests of this semaphore have no keys.")
    return await do[wanted.action](semaphore, wanted)


async def _set_limit(semaphore: AnySemaphore, wanted: Change) -> str:
    limit = wanted.limit
    if wanted.key is not None:
        assert isinstance(semaphore, FairSemaphore)
        await semaphore.set_limit(limit, key=wanted.key)
        done = "removed: the clients' own applies" if limit is None else f"set to {limit:,}"
        return f"The limit of the key {wanted.key!r} was {done}."
    await semaphore.set_limit(limit)
    if limit is None:
        return "The set limit was removed: the clients' own limits apply."
    return f"The limit is {limit:,} now.{_still_held(await semaphore.status(0))}"


async def _pause(semaphore: AnySemaphore, _: Change) -> str:
    await semaphore.pause()
    rest = _still_held(await semaphore.status(0))
    return f"Paused: no permit is granted until it is resumed.{rest}"


async def _resume(semaphore: AnySemaphore, _: Change) -> str:
    await semaphore.resume()
    limit = (await semaphore.status(0)).set_limit
    back = (
        "the clients' own limits apply" if limit is None else f"the set limit of {limit:,} applies"
    )
    return f"Resumed: {back}."


async def _kick(semaphore: AnySemaphore, wanted: Change) -> str:
    assert wanted.permit is not None
    if not await semaphore.release(wanted.permit):
        raise Refused(409, "That permit is not held any more: nothing was changed.")
    return "The permit was revoked, and its holder was notified."


async def _clear(semaphore: AnySemaphore, _: Change) -> str:
    await semaphore.clear()
    return "The semaphore was deleted: holders lose their permits, and waiters queue again."


def _still_held(status: SemaphoreStatus) -> str:
    if status.held <= status.limit:
        return ""
    return f" {count(status.held, 'permit is', 'permits are')} still held."
