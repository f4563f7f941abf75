"""What a hub says of itself to the server."""

import json
from typing import NamedTuple, cast

NO_PUSH = 1  # no push messages reach the hub
UNCOUNTED = 2  # they reach it, and scripts that send them are told that they reach no process


class HubInfo(NamedTuple):
    """Sent with the first command that a server gets from a hub, and after every reconnection.

    Attributes:
        description: text for `status` to show, as `describe` makes it.
        messages: 0, NO_PUSH or UNCOUNTED.
        used: a number up to which the hub sends no request any more.
    """

    description: str
    messages: int = 0
    used: int = 0


UNCHANGED = HubInfo("")
"""Of a command whose server has been told."""


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
