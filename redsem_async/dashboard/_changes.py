"""The changes that an operator may make. Each is logged, with who made it."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config
from redsem_async._core.errors import BackendUnavailable, SemaphoreError
from redsem_async._core.keys import parse_permit_id
from redsem_async._core.log import facts
from redsem_async._tools import changed
from redsem_async._tools.discovery import SemaphoreInfo, find
from redsem_async._tools.stored import READ_ERRORS

from ._access import CHANGES, Access, forgery
from ._history import History
from ._views import short

logger = logging.getLogger("redsem_async.dashboard")

MAX_BODY = 10_000  # bytes
CHANGE_TIMEOUT = 10.0  # seconds


class NotChanged(Exception):
    """Nothing was changed. *status* is that of the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator asks for.

    Attributes:
        action: one of `CHANGES`.
        name: of the semaphore.
        limit: the new limit. None removes it.
        key: whose limit it is. None for the overall limit.
        permit: the id of the permit to revoke.
        seconds: the length of the back-off.
    """

    action: str
    name: str
    limit: int | None = None
    key: str | None = None
    permit: str | None = None
    seconds: float = 0.0

    @property
    def ends(self) -> str | None:
        """What it removes or ends: a "limit", a "back-off" or nothing."""
        if self.action == "resume" or (self.action == "set_limit" and self.limit is None):
            return "limit"
        return "back-off" if self.action == "back_off" and not self.seconds else None


async def change(
    request: Request, access: Access, redis: Any, prefix: str, histories: Mapping[str, History]
) -> str:
    """Make the change that *request* asks for, and return what was done, in words.

    Raises:
        NotChanged: nothing was changed.
    """
    if (why := forgery(request)) is not None:
        raise NotChanged(403, f"Nothing was changed: {why}.")
    wanted = _change_of(await _body(request))
    refusal: Exception = NotChanged(403, "You may not do that.")
    try:
        who = await access.who(request, wanted.action, wanted.name)
    except HTTPException as error:  # a function may refuse in this way, too
        who, refusal = None, error
    if who is None:
        asked = facts("change refused", semaphore=wanted.name, action=wanted.action)
        logger.warning("%r: %s was refused", wanted.name, wanted.action, extra=asked)
        raise refusal
    try:
        async with asyncio.timeout(CHANGE_TIMEOUT):
            label = config.label_of(f"dashboard/{who}")
            history = histories.get(wanted.name)
            if wanted.ends and history is not None:
                history.note_ended(wanted.ends, wanted.key, label, time.time())
            text = await _make(wanted, redis, prefix, label)
            if wanted.action == "delete" and history is not None:
                history.note_deleted(label, time.time())
    except (BackendUnavailable, *READ_ERRORS) as error:
        reason = str(error) or "no reply in time"
        raise NotChanged(
            503, f"Redis does not answer. It is unknown whether this was done ({reason})."
        ) from error
    except SemaphoreError as error:
        raise NotChanged(502, f"Redis refused it: {error}.") from error
    done = {"semaphore": wanted.name, "action": wanted.action, "who": who}
    extra = facts("changed", **done, limit=wanted.limit, key=wanted.key)
    what = wanted.action
    if wanted.action == "set_limit":
        what = f"set_limit {wanted.limit}" + (
            "" if wanted.key is None else f" of key {wanted.key!r}"
        )
    elif wanted.action == "back_off":
        what = f"back_off {wanted.seconds:g}"
    elif wanted.permit is not None:
        what = f"revoke {short(wanted.permit)}"
    logger.info("%r: %s by %r", wanted.name, what, who, extra=extra)
    return text


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise NotChanged(413, "The request is too long.")
    try:
        data: object = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise NotChanged(400, "The request is not a JSON object.")
    return data  # pyright: ignore[reportUnknownVariableType]


def _change_of(data: dict[str, Any]) -> Change:
    action, name, limit = data.get("action"), data.get("name"), data.get("limit")
    key, permit = data.get("key"), data.get("permit")
    if action not in CHANGES:
        raise NotChanged(400, f"There is no such action. Use one of {', '.join(CHANGES)}.")
    try:
        name = config.text(name, "name")
        key = None if key is None else config.key_of(key)
        if limit is not None:
            limit = config.whole(limit, "limit", 0)
        seconds = config.duration_of(data.get("seconds", 0.0), "seconds", config.LONGEST_BACK_OFF)
    except (TypeError, ValueError) as error:
        raise NotChanged(400, f"Nothing was changed: {error}.") from error
    if action == "set_limit" and "limit" not in data:
        raise NotChanged(400, "Nothing was changed: a limit is needed, or null to remove it.")
    if action == "revoke" and (not isinstance(permit, str) or parse_permit_id(permit) is None):
        raise NotChanged(400, "Nothing was changed: that is not the id of a permit.")
    return Change(action, name, limit, key, permit if action == "revoke" else None, seconds)


async def _make(wanted: Change, redis: Any, prefix: str, label: str) -> str:
    info = await find(redis, prefix, wanted.name)
    if info is None:
        raise NotChanged(404, f"There is no semaphore named {wanted.name!r}: nothing was changed.")
    if wanted.key is not None and info.mode is not None and not info.keyed:
        raise NotChanged(400, "Nothing was changed: the requests of this semaphore have no keys.")
    try:
        semaphore = info.semaphore(redis, prefix, keyed=wanted.key is not None, label=label)
    except ValueError as error:
        raise NotChanged(400, f"Nothing was changed: {error}.") from error
    done = await _done(wanted, info, semaphore)
    return f"{done[0].upper()}{done[1:]}."


async def _done(wanted: Change, info: SemaphoreInfo, semaphore: AnySemaphore) -> str:
    limit = wanted.limit
    match wanted.action:
        case "set_limit" if wanted.key is not None:
            await semaphore.set_limit(limit, key=wanted.key)
            return changed.key_limit_set(wanted.key, limit)
        case "set_limit":
            await semaphore.set_limit(limit)
            return changed.limit_set(limit, info, await semaphore.status(0))
        case "pause":
            await semaphore.pause()
            return changed.paused(info, await semaphore.status(0))
        case "resume":
            await semaphore.resume()
            return changed.resumed(info, await semaphore.status(0))
        case "back_off":
            await semaphore.back_off(wanted.seconds, key=wanted.key)
            return changed.backed_off(wanted.seconds, wanted.key)
        case "delete":
            await semaphore.delete()
            return changed.DELETED
        case _:
            assert wanted.permit is not None
            if not await semaphore.release(wanted.permit):
                raise NotChanged(409, "That permit is not held any more: nothing was changed.")
            return changed.REVOKED
