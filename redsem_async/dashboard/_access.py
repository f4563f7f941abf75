"""Who may see and change what, and whether a request to change comes from a page of ours."""

import hmac
import inspect
import re
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

Authorize = Callable[[Request, str, str | None], bool | str | Awaitable[bool | str]]
"""``authorize(request, action, name)``, see `dashboard`."""

CHANGES = ("set_limit", "pause", "resume", "back_off", "revoke", "delete")
VIEW = "view"
METRICS = "metrics"

COOKIE = "redsem_csrf"
HEADER = "x-csrf-token"
_TOKEN = re.compile(r"[\w-]{43}\Z", re.ASCII)  # 32 random bytes as text

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Access:
    """The rules of one dashboard."""

    def __init__(self, *, writable: bool, authorize: Authorize | None) -> None:
        self.writable: bool = writable
        self._authorize = authorize

    async def who(self, request: Request, action: str, name: str | None) -> str | None:
        """Who asks, if *action* is allowed. None if it is not."""
        if action in CHANGES and not self.writable:
            return None
        if self._authorize is None:
            return _address(request)
        answer = self._authorize(request, action, name)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, str):
            return answer or None
        return _address(request) if answer is True else None

    async def may(self, request: Request, action: str, name: str) -> bool:
        """Whether *action* is allowed on *name*, where nothing is done yet."""
        try:
            return await self.who(request, action, name) is not None
        except HTTPException:  # a function may refuse in this way, too
            return False

    async def changes(self, request: Request, name: str) -> list[str]:
        """The actions that are allowed on *name*."""
        if not self.writable:
            return []
        return [action for action in CHANGES if await self.may(request, action, name)]


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def token_of(request: Request) -> str:
    """The token of the browser, or a new one."""
    token = request.cookies.get(COOKIE, "")
    return token if _TOKEN.match(token) else secrets.token_urlsafe(32)


def set_token(request: Request, response: Response, token: str) -> None:
    """Let the browser keep *token*. Scripts cannot read it, and other sites' requests lack it."""
    response.set_cookie(
        COOKIE,
        token,
        path=None,  # the folder of the page, whatever that is behind a proxy
        httponly=True,
        samesite="lax",  # a page to which another site links works, too
        secure=request.url.scheme == "https",
    )


def forgery(request: Request) -> str | None:
    """Why a request for a change does not come from our own page. None if it does."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:  # the browser says it, whatever a proxy makes of the host
        if site != "same-origin":
            return "the request comes from another site"
    else:
        origin = request.headers.get("origin")
        if origin is None or urlsplit(origin).netloc != request.headers.get("host"):
            return "the request comes from another site, or the proxy changes its Host"
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return "the request is not JSON"
    cookie, sent = request.cookies.get(COOKIE, ""), request.headers.get(HEADER, "")
    if not _TOKEN.match(cookie) or not hmac.compare_digest(cookie.encode(), sent.encode()):
        return "the page is too old, or its token is missing: reload it"
    return None
