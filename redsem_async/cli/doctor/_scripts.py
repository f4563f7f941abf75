"""What scripts and messages lack on a server, and what is done about it."""

import secrets
from collections.abc import Iterator
from typing import Any

from redis.exceptions import ResponseError

from redsem_async._core.keys import Address, new_hub_id
from redsem_async._protocol.backend import ConnectionRejected
from redsem_async._redis.dial import Opened, dial, target_of
from redsem_async._redis.inquiry import Asker, Met

from ._finding import Finding, note, problem

WHERE = "see the page «Where it runs» of the documentation"


async def scripts_and_messages(client: Any, prefix: str) -> list[Finding]:
    """Connect as the library does, and ask what it asks."""
    address = Address("fair", prefix, f"doctor-{secrets.token_hex(4)}", "server")
    try:
        opened: Opened = await dial(target_of(client), Asker(new_hub_id(), address))
    except ConnectionRejected as rejection:
        return [problem("messages", f"rejected: {rejection}", "check user and password")]
    opened.transport.abort()
    found: list[Finding] = []
    if opened.no_push is not None:
        text = f"push messages are unavailable ({opened.no_push}): waiters are served late,"
        advice = "connect without a proxy that supports only RESP2"
        found.append(problem("messages", f"{text} at heartbeats", advice))
    if opened.met is not None:
        found += _lacks(opened.met)
        if opened.met.no_time and "permission" not in opened.met.no_time:  # which `rights` names
            found.append(await _clock(client, address.keys[0], opened.met.no_time))
    return found


def _lacks(met: Met) -> Iterator[Finding]:
    if met.uncounted:
        text = (
            "PUBLISH does not count subscribers: a permit that is granted to a killed process goes"
            " to the next waiter some seconds later"
        )
        yield note("messages", text, WHERE)
    if met.no_set_repl:
        text = "there is no redis.set_repl: push messages are also sent to replicas"
        yield note("scripts", text, WHERE)


async def _clock(client: Any, key: str, why: str) -> Finding:
    try:
        await client.execute_command("PEXPIRETIME", key)
    except ResponseError as error:
        text = f"scripts cannot read the server's clock: TIME ({why}), PEXPIRETIME ({error})"
        return problem(
            "scripts", text, 'use clock="local" and NTP, or ACL SETUSER ... +pexpiretime'
        )
    text = f"scripts cannot call TIME ({why}): they read the clock from the expiry of a key"
    return note("scripts", text, WHERE)
