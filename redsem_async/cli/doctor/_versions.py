"""The versions of the library that use semaphores, and names that this version cannot use."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoPermissionError

from redsem_async import LayoutMismatch
from redsem_async._integrations import discovery
from redsem_async.cli._render import versions_text

from ._finding import Finding, note, ok

_ABOUT = "versions"
_PAGE = "docs/upgrading.md has the order of an upgrade"


async def check_versions(client: Any, prefix: str, names: Sequence[str]) -> list[Finding]:
    """The versions that use *names* now, or used them last."""
    try:
        entries = await discovery.list_entries(client, prefix, names)
    except NoPermissionError:  # already reported with the rights
        return []
    found: list[Finding] = []
    versions = discovery.versions_of(c for entry in entries for c in entry.info.clients)
    if versions:
        text = versions_text(versions)
        found.append(ok(_ABOUT, text) if len(versions) == 1 else note(_ABOUT, text, _PAGE))
    others = [e.status for e in entries if isinstance(e.status, LayoutMismatch)]
    if others:
        text = f"names in use with another layout: {len(others):,}; {others[0]}"
        found.append(note(_ABOUT, text, _PAGE))
    return found
