"""``redsem-async run`` runs any command while it has a permit."""

import asyncio
import contextlib
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import click
from redis.exceptions import ResponseError

from redsem_async import AcquireTimeout, AnySemaphore, FairSemaphore, Permit, Semaphore
from redsem_async._core import config
from redsem_async._core.clock import now as clock
from redsem_async._core.config import SHORTEST_LEASE
from redsem_async._core.rates import Cost, Rate
from redsem_async._tools import discovery
from redsem_async._tools.states import duration
from redsem_async._tools.stored import READ_ERRORS
from redsem_async.observer import Event, observe

from ._options import Number, Rated, flag, name, on_target, option
from ._process import Process, check_program
from ._target import REDIS_ERRORS, USAGE_ERROR, Target, connected, fail, failure, say

UNAVAILABLE, TRY_AGAIN = 69, 75  # EX_UNAVAILABLE and EX_TEMPFAIL of sysexits.h
TERM_BELOW, KILL_BELOW = 1 / 4, 1 / 20  # of the lease that is left
LOOK = 0.05  # seconds between two looks at what is to end
LOOK_UP = 1.0  # seconds of one attempt to find out what other clients declare
NAMED = 5  # holders named in the message while it waits
LEASE, COST = Number("seconds", SHORTEST_LEASE), Rated("[rate=]n", float)


@click.command
@name
@click.argument("command", nargs=-1, required=True)
@flag(
    "--fair/--no-fair",
    help="Use a FairSemaphore, or a Semaphore. Default: that of other clients, or fair.",
    default=None,
)
@option("--limit", "Number of permits. Default: that of other clients, or 1.", Number("n", 1))
@option("--slots", "Names of the permits, instead of a limit.", metavar="A,B")
@option("--permits", "Number of permits that the command needs.", Number("n", 1), 1)
@option("--key", "Key that the permits also count against.")
@option("--key-limit", "Limit of the key. Default: that of other clients.", Number("n", 0))
@option("--cost", "What it takes from the rate. Repeatable.", COST, multiple=True)
@option(
    "--rate",
    "A rate, in PER seconds (1 by default), if no client declares it. Repeatable.",
    Rated("[name=]amount[/per]", Rate, 2),
    multiple=True,
)
@option("--timeout", "Time to wait for a permit. Default: forever.", Number("seconds", 0))
@option("--lease", "Time until a crashed host's permit is free.", LEASE, 10.0)
@option("--max-hold", "Time after which the command is ended.", LEASE)
@option("--min-hold", "Time for which the permit is kept, at least.", Number("seconds", 0), 0.0)
@flag("--verbose", "-v", help="Say on stderr what the command waits for.")
@on_target
def run(
    target: Target,
    name: str,
    command: tuple[str, ...],
    fair: bool | None,  # noqa: FBT001 - as click calls it
    limit: int | None,
    slots: str | None,
    permits: int,
    key: str | None,
    key_limit: int | None,
    cost: tuple[tuple[str, float], ...],
    rate: tuple[tuple[str, Rate], ...],
    timeout: float | None,
    lease: float,
    max_hold: float | None,
    min_hold: float,
    *,
    verbose: bool,
) -> None:
    """Hold a permit while a command runs.

    The command gets REDSEM_TOKEN (the fencing token), REDSEM_PERMIT (the permit's id) and, with
    slots, REDSEM_SLOT in its environment. Signals are passed on to it. If the permit is lost,
    the command's process group gets SIGTERM, and SIGKILL before the lease ends.

    With --min-hold the permit is kept until so many seconds after it was granted, although the
    command has ended, unless a signal asked it to.

    Exits with the command's exit code, or 128 + n if signal n ended the command. If it was not
    started, exits with 75 if no permit became free in time, 69 if Redis was unreachable when it
    started or returned an error, and 126 or 127 if the command cannot be executed or does not
    exist.
    """
    longest = math.inf if max_hold is None else max_hold
    for is_wrong, why in (
        (limit is not None and slots is not None, "give either --limit or --slots"),
        (min_hold > longest, "--min-hold must not exceed --max-hold"),
        (lease > longest, "--lease must not exceed --max-hold"),
        (fair is False and bool(key or cost or rate), "--key, --cost and --rate need --fair"),
    ):
        if is_wrong:
            fail(why, USAGE_ERROR)
    check_program(command[0])
    options: dict[str, Any] = {
        "limit": limit,
        "slots": None if slots is None else slots.split(","),
        "lease": lease,
        "max_hold": max_hold,
        "prefix": target.prefix,
        "label": config.label_of(PurePath(command[0]).name) or None,
        "cancel_on_loss": False,
    }

    async def under_a_permit(process: Process) -> None:
        process.listen()
        async with connected(target) as client:
            is_given, began = limit is not None or slots is not None, clock()
            until = began + min(lease, math.inf if timeout is None else timeout)
            needed = not is_given or bool(cost and not rate)
            known = await _look_up(target, client, name, until, needed=needed)
            options["clock"] = known.clock or "server"
            rates = _rates_of(known, rate)
            if rates and fair is not False:
                options["rate"] = rates
            if (key is not None or known.keyed) and fair is not False:
                options.update(_options_of_keys(known, key_limit))
            if not is_given:
                options["limit"] = None if known.slots else _limit_of(known)
                options["slots"] = known.slots or None
            is_fair = known.fair or key is not None or bool(rate) if fair is None else fair
            semaphore = (FairSemaphore if is_fair else Semaphore)(client, name, **options)
            left = None if timeout is None else max(0.0, began + timeout - clock())
            with observe(_Waits(semaphore)) if verbose else contextlib.nullcontext():
                permit = await semaphore.acquire(
                    timeout=left, permits=permits, key=key, cost=_cost_of(name, rates, cost)
                )
            async with permit:
                if verbose:
                    say(f"{name!r} was granted after {permit.waited:.1f} s")
                await _work(process, permit, lease, min_hold)

    with contextlib.closing(Process([*command])) as process:
        try:
            asyncio.run(under_a_permit(process))
        except (asyncio.CancelledError, KeyboardInterrupt):
            if process.code is None:
                code = 128 + (process.signalled or signal.SIGINT)
                raise click.exceptions.Exit(code) from None
        except AcquireTimeout as full:
            fail(str(replace(full, waited=timeout or 0.0)), TRY_AGAIN)
        except REDIS_ERRORS as error:
            if process.code is None:
                fail(failure(target, error), UNAVAILABLE)
        except ValueError as error:
            fail(_as_options(str(error)), USAGE_ERROR)
    raise click.exceptions.Exit(process.code or 0)


async def _look_up(
    target: Target, client: Any, name: str, until: float, *, needed: bool
) -> discovery.SemaphoreInfo:
    """What the living clients of *name* declare.

    Tries again *until* then if Redis is unreachable, or rejects it although it is *needed*.
    """
    speaks_at = clock() + LOOK_UP
    while True:
        try:
            async with asyncio.timeout(LOOK_UP):
                found = await discovery.find(client, target.prefix, name)
                known = found or discovery.SemaphoreInfo(name)
                living = (each for each in known.clients if each.id in known.dead_in)
                return replace(known, clients=tuple(living))
        except READ_ERRORS as error:
            left, rejected = until - clock(), isinstance(error, ResponseError)
            if rejected and (left <= 0 or not needed):
                return discovery.SemaphoreInfo(name)
            if left <= 0:
                raise
            if clock() >= speaks_at:
                speaks_at = math.inf
                say(f"{failure(target, error)} Trying again for {duration(left)}.")
        await asyncio.sleep(LOOK)


def _as_options(text: str) -> str:
    """*text* about an argument of the library, whose name begins it, in the words of options."""
    word, _, rest = text.partition(" ")
    is_option = word in click.get_current_context().params
    return f"--{word.replace('_', '-')} {rest}" if is_option else text


def _limit_of(known: discovery.SemaphoreInfo) -> int:
    """The limit that the living clients declare. 1 if there are none."""
    *others, last = known.declared or (1,)
    if others:
        limits = f"{', '.join(map(str, others))} and {last}"
        raise ValueError(
            f"the clients of {known.name!r} declare the limits {limits}, or just did: give --limit"
        )
    return last


def _rates_of(
    known: discovery.SemaphoreInfo, given: Sequence[tuple[str, Rate]]
) -> dict[str, Rate]:
    """The rates that the clients declare, or else the *given* ones. A debt may outlive both."""
    rates = {name or "requests": rate for name, rate in given}
    rates |= {name: rate for name, rate in known.rates.items() if rate is not None}
    if untold := known.rates.keys() - rates.keys():
        rate = min(untold)
        raise ValueError(
            f"no client of {known.name!r} declares how much {rate!r} is: give --rate {rate}=AMOUNT"
        )
    return rates


def _cost_of(
    name: str, rates: Mapping[str, Rate], given: Sequence[tuple[str, float]]
) -> Cost | None:
    """What ``--cost`` says for *rates*. One of several must have its own."""
    costs: dict[str, float] = dict(given)
    if costs and not rates:
        raise ValueError(f"--cost: no client of {name!r} declares a rate: give --rate")
    if len(rates) > 1 and (lacking := rates.keys() - costs.keys() - {"requests"}):
        rate = min(lacking)
        raise ValueError(f"--cost must say what it takes from {rate!r}, as in --cost {rate}=5")
    return costs[""] if [*costs] == [""] else costs or None


def _options_of_keys(known: discovery.SemaphoreInfo, key_limit: int | None) -> dict[str, Any]:
    """What a semaphore with keys needs, as its other clients have it."""
    each = known.key_limit if key_limit is None else key_limit
    return {"key_limit": dict[str, int]().get if each is None else each, "share": known.shares}


async def _work(process: Process, permit: Permit, lease: float, min_hold: float) -> None:
    """Run the command under *permit*, which is kept for *min_hold* seconds unless it is lost."""
    until = clock() + min_hold
    slot = {"REDSEM_SLOT": ",".join(map(str, permit.slots))} if permit.slots else {}
    token = str(permit.fencing_token)
    process.start(REDSEM_TOKEN=token, REDSEM_PERMIT=permit.id, **slot)
    await _until_ended(process, permit, lease)
    if not process.asked_to_end:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - clock()):
                await permit.wait_lost()


async def _until_ended(process: Process, permit: Permit, lease: float) -> None:
    """Wait for the end of the command, and make sure that it ends before the lease does.

    After a lost permit, no process of its group may be left, as a shell ends before its children.
    """
    lost = asyncio.ensure_future(permit.wait_lost())
    asked, until = False, 0.0
    while not process.ended.done() or (asked and process.group_exists()):
        if not permit.lost:
            until = clock() + permit.expires_in
        left = (until - clock()) / lease
        if not asked and (lost.done() or left <= TERM_BELOW):
            asked = True
            process.terminate()
            reason = lost.result().reason if lost.done() else "it could not be refreshed"
            say(f"lost the permit of {permit.name!r} ({reason}); stopping the command")
        if left <= KILL_BELOW:
            process.kill()
            await process.ended
            break
        if asked:
            await asyncio.sleep(min(LOOK, lease * KILL_BELOW / 2))
        else:
            waited: list[asyncio.Future[Any]] = [process.ended, lost]
            pause = lease * (left - TERM_BELOW)
            await asyncio.wait(waited, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
    lost.cancel()


class _Waits:
    """Names the holders that the command waits for."""

    def __init__(self, semaphore: AnySemaphore) -> None:
        self._semaphore = semaphore
        self._asking: asyncio.Task[None] | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "queued":
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        with contextlib.suppress(*REDIS_ERRORS):
            from ._render import client_text, rates_text

            now = await self._semaphore.status(NAMED)
            by = [f"{client_text(h.client)} for {duration(h.age)}" for h in now.holders]
            held = f"; held by {', '.join(by)}" if by else ""
            more = ", ..." if now.held > sum(h.permits for h in now.holders) else ""
            counts = f"limit {now.limit}, {now.held} held, {now.waiting} waiting"
            rates = f"; rates: {rates_text(now.rates)}" if now.rates else ""
            say(f"waiting for {self._semaphore.name!r}: {counts}{held}{more}{rates}")
