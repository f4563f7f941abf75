"""What a hub says of itself to the server."""

import json
from typing import NamedTuple, cast


class HubInfo(NamedTuple):
    """Sent with the first command that a server gets from a hub, and after every reconnection.

    Attributes:
        description: text for `status` to show, as `describe` makes it.
        no_push: no push messages reach the hub.
        uncounted: push messages reach the hub, and the scripts that send them are told that
            no process received them.
    """

    description: str
    no_push: bool = False
    uncounted: bool = False


def describe(**facts: object) -> str:
    """Return the text in which Redis keeps *facts* about a hub."""
    return json.dumps(facts, separators=(",", ":"))


def facts_of(description: str) -> dict[str, object]:
    """Return what `describe` was given, or nothing if it did not make *description*."""
    if not description.startswith("{"):
        return {}
    try:
        facts = json.loads(description)
    except (ValueError, RecursionError):  # of lists in lists
        return {}
    return cast("dict[str, object]", facts)
