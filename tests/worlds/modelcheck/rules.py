"""What must hold, whatever happens in whichever order."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import AnyOperation
from tests.worlds.judge import Broken, forgotten
from tests.worlds.look import Look
from tests.worlds.look import Permit as Held
from tests.worlds.world import Violation

from .process import NAME, id_of

if TYPE_CHECKING:
    from .path import Path

DEEPEST = 150  # events of a path
PROMPT = 0.1  # seconds in which somebody sees that a lease has ended


# -- of each call


def check_call(
    world: "Path",
    before: Look,
    call: AnyOperation,
    hub: str,
    answer: AnyReply | CommandError,
    after: Look,
) -> None:
    """Raise Violation where what the server did must not be."""
    _raise_first(world, world.judge.ran(before, call, hub, answer, after))
    if not isinstance(answer, CommandError):
        _raise_first(world, world.orders[NAME].ran(before, call, hub, answer, after))


def _raise_first(world: "Path", found: Iterator[Broken]) -> None:
    for broken in found:
        raise Violation(broken.named(lambda identity: name_of(world, identity)))


# -- of each moment


def check(world: "Path") -> None:
    if world.violations:
        raise Violation(world.violations[0])
    _check_jobs(world)
    _check_detached(world)
    trusted = [
        (
            id_of(permit),
            Held.trusted(permit._lease, world.server_us_at(permit._lease.trusted_until)),
        )
        for process in world.members
        if process.alive
        for permit in process.permits
        if permit.expires_in > 0
    ]
    _raise_first(world, world.judge.trust(trusted, world.look().holders))


def _check_jobs(world: "Path") -> None:
    for process in world.members:
        for job in process.jobs:
            if job.over and process.alive:
                assert job.task is not None
                if job.task.cancelled():
                    raise Violation(f"{process.name}'s {job.name} was cancelled by nobody")
                error = job.task.exception()
                if error is not None:
                    if isinstance(error, Violation):
                        raise error
                    raise Violation(f"{process.name}'s {job.name} ended with {error!r}") from error


def _check_detached(world: "Path") -> None:
    """What was detached ends when it was said to, but for a refresh that came late."""
    if world.late:
        return
    for identity, latest_ms in world.detached.items():
        held = world.look().holders.get(identity)
        if held is not None and held.expiry_ms > latest_ms:
            name = name_of(world, identity)
            raise Violation(f"{name} was detached, and is held for longer than was said")


def check_depth(events: int) -> None:
    if events > DEEPEST:
        raise Violation("events beget events without end")


# -- of each moment at which nothing is on its way


def check_quiet(world: "Path") -> None:
    """Raise Violation where somebody is forgotten: nobody will come back to it."""
    if not all(process.quiet for process in world.members if process.alive):
        return
    if any(process.stopped for process in world.members):
        return
    for identity in _live(world):
        if not _has_owner(world, identity):
            raise Violation(f"{name_of(world, identity)} is held, and nobody has it")
    if world.calm:
        _check_prompt(world)
    else:
        world.forgotten_since = None


def _has_owner(world: "Path", identity: str) -> bool:
    hub = identity.partition(".")[0]
    process = next(p for p in world.members if hub in p.hubs)
    if not process.alive or identity in world.detached:
        return True
    return any(id_of(permit) == identity for permit in process.permits)


def _check_prompt(world: "Path") -> None:
    """A free permit and a waiter meet: at once, or soon after a lease has ended."""
    first = forgotten(world.look())
    if first is None:
        world.forgotten_since = None
        return
    if world.forgotten_since is None:
        world.forgotten_since = world.now
    if world.now >= world.forgotten_since + (PROMPT if world.ticked else 0.0):
        raise Violation(f"{name_of(world, first.id)} waits for a permit that is free")


# -- of the end


def check_end(world: "Path") -> None:
    for process in world.members:
        for job in process.jobs:
            if process.alive and job.in_call:
                raise Violation(f"{process.name}'s {job.name} is never answered")
    for identity in _live(world):
        raise Violation(f"{name_of(world, identity)} is never given back")


def _live(world: "Path") -> list[str]:
    return [*world.look().live]


def name_of(world: "Path", identity: str) -> str:
    hub, _, number = identity.partition(".")
    process = world.owners.get(hub)
    if process is None:
        return identity
    nth = int(hub[16:], 16)
    return f"{process.name}'s {number}" + (f" (hub {nth})" if nth > 1 else "")
