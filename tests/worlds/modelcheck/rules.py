"""What must hold, whatever happens in whichever order."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from redsem_async._protocol.operations import Clear, Operation, Reap, Release
from redsem_async._protocol.pushes import Granted, Push
from redsem_async.testing._spec.base import Specification
from redsem_async.testing._spec.keyed import KeyedSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import QueuedRequest
from tests.worlds.turns import SERVING, broken_turn, forgotten, grants_of

from .process import Wrong, id_of

if TYPE_CHECKING:
    from .world import World

NOBODY = "f" * 32
DEEPEST = 150  # events of a path
PROMPT = 0.1  # seconds in which somebody sees that a lease has ended
MARGIN = 0.0011  # seconds: the server counts in whole milliseconds


class Before(NamedTuple):
    """How the server stood before a call."""

    holders: dict[str, int]  # tokens, by id
    line: tuple[QueuedRequest, ...]


def look(world: "World") -> Before:
    model = world.model
    assert isinstance(model, QueueSpecification)
    line = tuple(model.line)
    return Before({i: held.token for i, held in model.state.holders.items()}, line)


# -- of each call


def check_call(world: "World", before: Before, call: Operation, hub: str) -> None:
    """Raise Wrong where what the server did must not be; note what excuses what."""
    model, ledger = world.model, world.ledger
    live = _live(world)
    granted: list[tuple[int, str]] = []
    tokens = set(before.holders.values())
    for identity in live:
        token = model.state.holders[identity].token
        if before.holders.get(identity) != token and token not in tokens:
            granted.append((token, identity))  # and not exchanged for another id
    for token, identity in sorted(granted):
        if token <= ledger.last_token:
            raise Wrong(f"the token of {name_of(world, identity)} does not grow")
        ledger.last_token = token
    _check_slots(world, {i: model.state.holders[i].slots for i in live})
    used = sum(model.state.holders[identity].permits for identity in live)
    if granted and used > world.scenario.highest:
        raise Wrong(f"{used} permits are held, under a limit of {world.scenario.highest}")
    ids = [identity for _, identity in sorted(granted)]
    assert isinstance(model, QueueSpecification)
    if isinstance(model, KeyedSpecification) or model.passes_over:
        _check_turns(world, model, before, ids, call, hub)
    else:
        _check_order(world, before, ids)
    _excuse(world, before, call)


def _check_slots(world: "World", slots: Mapping[str, Sequence[int]]) -> None:
    """No two permits have one slot."""
    owners: dict[int, str] = {}
    for identity in slots:
        for slot in slots[identity]:
            other = owners.setdefault(slot, identity)
            if other != identity:
                names = f"{name_of(world, identity)} and {name_of(world, other)}"
                raise Wrong(f"{names} have one slot: {slot}")


def _check_turns(
    world: "World",
    model: QueueSpecification,
    before: Before,
    granted: list[str],
    call: Operation,
    hub: str,
) -> None:
    """Whose turn it was, with keys or where requests are passed over; and nobody waits for it."""
    now_us = world.server_us
    grants = grants_of(model, before.line, call, hub, granted, now_us)
    wrong = broken_turn(model, before.line, grants, now_us, lambda i: name_of(world, i))
    if wrong is not None:
        raise Wrong(wrong)
    if isinstance(call, SERVING) and (waits := forgotten(model, world.server_us)):
        raise Wrong(f"{name_of(world, waits.id)} waits, and its limits have room")


def _check_order(world: "World", before: Before, granted: list[str]) -> None:
    """No grant passes an older request in line that could have been granted."""
    model = world.model
    assert isinstance(model, QueueSpecification)
    if not granted:
        return
    places = {waiter.id: place for place, waiter in enumerate(before.line)}
    last = max(places.get(identity, len(places)) for identity in granted)
    set_limit = model.state.set_limit
    now_ms = world.server_us // 1000
    for waiter in model.line:
        hub = model.state.look_up(waiter.hub)
        eligible = hub.alive_until > now_ms and not hub.unreachable
        most = waiter.request.limit if set_limit is None else set_limit
        if eligible and waiter.request.permits <= most and places.get(waiter.id, last) < last:
            raise Wrong(f"{name_of(world, waiter.id)} was in line before those who were granted")


def _excuse(world: "World", before: Before, call: Operation) -> None:
    """A permit that was taken away by right may be trusted until its holder learns of it."""
    ledger, model = world.ledger, world.model
    match call:
        case Clear() if ledger.clearing:
            ledger.excused |= before.holders.keys()
        case Release(owner=owner, numbers=numbers):
            ledger.excused |= {f"{owner}.{number}" for number in numbers}
        case _:
            pass
    limit = model.state.set_limit
    if limit != ledger.limit and not ledger.limits:
        raise Wrong(f"the set limit is {limit}, after {ledger.limit} was confirmed")
    if isinstance(model, KeyedSpecification) and not ledger.limits:
        confirmed = {key: n for key, n in ledger.key_limits.items() if n is not None}
        if model.key_limits != confirmed:
            raise Wrong(f"the limits of keys are {model.key_limits}, not {confirmed}")


# -- of each moment


def check(world: "World") -> None:
    if world.unhandled:
        raise Wrong(world.unhandled[0])
    _check_jobs(world)
    _check_detached(world)
    trusted = [
        permit
        for process in world.processes
        if process.alive
        for permit in process.permits
        if permit.expires_in > 0 and id_of(permit) not in world.ledger.excused
    ]
    if sum(permit.permits for permit in trusted) > world.scenario.highest:
        names = ", ".join(name_of(world, id_of(permit)) for permit in trusted)
        raise Wrong(f"too many are trusted at a time: {names}")
    _check_slots(world, {id_of(permit): permit._lease.slots for permit in trusted})
    for permit in trusted:
        held = world.model.state.holders.get(id_of(permit))
        left = world.seconds_left(held.expiry_ms) if held is not None else 0.0
        trust = permit.expires_in
        if left < trust - MARGIN:
            name = name_of(world, id_of(permit))
            raise Wrong(f"{name} is trusted for {trust:.3f} s, and held for {left:.3f} s")


def _check_jobs(world: "World") -> None:
    for process in world.processes:
        for job in process.jobs:
            if job.over and process.alive:
                assert job.task is not None
                if job.task.cancelled():
                    raise Wrong(f"{process.name}'s {job.name} was cancelled by nobody")
                error = job.task.exception()
                if error is not None:
                    if isinstance(error, Wrong):
                        raise error
                    raise Wrong(f"{process.name}'s {job.name} ended with {error!r}") from error


def _check_detached(world: "World") -> None:
    """What was detached ends when it was said to, but for a refresh that came late."""
    if world.late:
        return
    for identity, latest_ms in world.ledger.detached.items():
        held = world.model.state.holders.get(identity)
        if held is not None and held.expiry_ms > latest_ms:
            name = name_of(world, identity)
            raise Wrong(f"{name} was detached, and is held for longer than was said")


def check_depth(events: int) -> None:
    if events > DEEPEST:
        raise Wrong("events beget events without end")


# -- of each moment at which nothing is on its way


def check_quiet(world: "World") -> None:
    """Raise Wrong where somebody is forgotten: nobody will come back to it."""
    if not all(process.quiet for process in world.processes if process.alive):
        return
    if any(process.stopped for process in world.processes):
        return
    for identity in _live(world):
        if not _has_owner(world, identity):
            raise Wrong(f"{name_of(world, identity)} is held, and nobody has it")
    if world.calm and world.scenario.prompt:
        _check_prompt(world)
    else:
        world.forgotten_since = None


def _has_owner(world: "World", identity: str) -> bool:
    process = world.owners[identity.partition(".")[0]]
    if not process.alive or identity in world.ledger.detached:
        return True
    if any(lease.id == identity for lease in process.kept):
        return True
    return any(id_of(permit) == identity for permit in process.permits)


def _check_prompt(world: "World") -> None:
    """A free permit and a waiter meet: at once, or soon after a lease has ended."""
    who = _forgotten(world)
    if who is None:
        world.forgotten_since = None
        return
    if world.forgotten_since is None:
        world.forgotten_since = world.now
    if world.now >= world.forgotten_since + (PROMPT if world.ticked else 0.0):
        raise Wrong(f"{who} waits for a permit that is free")


def _forgotten(world: "World") -> str | None:
    """Who could be served now, although nothing is on its way."""
    model = world.model
    assert isinstance(model, QueueSpecification)
    if isinstance(model, KeyedSpecification) or model.passes_over:
        first = forgotten(model, world.server_us, _kept(world))
        return name_of(world, first.id) if first else None
    return "somebody" if _would_serve(world) else None


def _kept(world: "World") -> set[str]:
    """Leases that nobody uses: their process gives them back when it hears of a waiter."""
    return {lease.id for process in world.processes if process.alive for lease in process.kept}


def _would_serve(world: "World") -> bool:
    """Whether a waiter would be granted something if anybody called now."""
    if not world.model.waiting:
        return False
    sent: list[Push] = []
    model: Specification = copy.copy(world.model)
    for name, value in vars(world.model).items():
        if name != "_publish":
            setattr(model, name, copy.deepcopy(value))
    for identity in _kept(world):
        model.state.holders.pop(identity, None)

    def publish(_owner: str, message: Push) -> int:
        sent.append(message)
        return 1

    model._publish = publish
    address = world.processes[0].semaphore._address
    model.run(address, Reap(), NOBODY, world.server_us)
    return any(isinstance(message, Granted) for message in sent)


# -- of the end


def check_end(world: "World") -> None:
    for process in world.processes:
        for job in process.jobs:
            if process.alive and job.in_call:
                raise Wrong(f"{process.name}'s {job.name} is never answered")
    if _live(world):
        identity = _live(world)[0]
        raise Wrong(f"{name_of(world, identity)} is never given back")


def _live(world: "World") -> list[str]:
    now_ms = world.server_us // 1000
    return [i for i, held in world.model.state.holders.items() if held.expiry_ms > now_ms]


def name_of(world: "World", identity: str) -> str:
    hub, _, number = identity.partition(".")
    process = world.owners.get(hub)
    if process is None:
        return identity
    nth = int(hub[16:], 16)
    return f"{process.name}'s {number}" + (f" (hub {nth})" if nth > 1 else "")
