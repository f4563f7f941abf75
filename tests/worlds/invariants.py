"""What ties the parts of a state together, between verbs and between scripts.

It is said where it is kept: for a process in `redsem_async/_hub/state.py`, and for the keys in
protocol.md, `holders.lua`, `serve.lua`, `order.lua` and `keyed.lua`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from redsem_async._hub.calls import AdoptCall
from redsem_async._hub.commands import AbandonBatch, AcquireBatch, AnyBatch, HeartbeatBatch
from redsem_async._hub.model import Call, LeaseState, Request, RequestState
from redsem_async._hub.state import SemaphoreState
from tests.worlds.look import Contents, Look, Waiter, limit_in_force

# -- of a process


def of_state(state: SemaphoreState, in_flight: Iterable[AnyBatch]) -> Iterator[str]:
    """What is wrong with what a process knows, whose commands *in_flight* have no reply yet."""
    own = [batch for batch in in_flight if batch.state is state]
    yield from _of_requests(state, own)
    for number, lease in state.leases.items():
        asks = state.requests.get(number)
        if lease.number != number or lease.state is LeaseState.ENDED:
            yield f"{number} has the lease of {lease.number}, {lease.state.name}"
        if (asks is not None and asks.lease is lease) != (lease.state is LeaseState.GRANTED):
            yield f"the lease of {number} is {lease.state.name}, and its request is {asks}"
    for pending in state.releases.get(state.identity.id, ()):
        held = state.leases.get(pending.number)
        if held is not None and held.state is not LeaseState.LOST:
            yield f"{pending.number} is {held.state.name} and released"
    sent = [batch.numbers[-1] for batch in own if isinstance(batch, AcquireBatch)]
    if [*state.acquires_in_flight] != sent:
        yield f"{sent} are in flight, and not {[*state.acquires_in_flight]}"
    for call in state.calls:
        if call.in_flight != (call in own):
            yield f"{call} is in flight or not"
    if state.heartbeats.in_flight and not any(isinstance(b, HeartbeatBatch) for b in own):
        yield "a heartbeat is awaited that is not in flight"
    doubted = [each for each in state.unsure if each.state is RequestState.WAITING]
    if doubted and not state.heartbeats.expected:
        yield f"nobody asks about {len(doubted)} waiters"
    size, at = state.todo()
    if state.changed:
        return  # it is settled at the end of this turn
    if size and not (own or state.scheduled):
        yield f"nobody writes what there is to write: {size}"
    if at < state.look_at:
        yield f"nobody looks at {at}, but at {state.look_at}"


def _of_requests(state: SemaphoreState, own: Iterable[AnyBatch]) -> Iterator[str]:
    new = Counter(request for _, _, request in state.new)
    asked, leaving, adopting = set[Request](), set[Request | Call](state.undo), set[Request]()
    for batch in own:
        match batch:
            case AcquireBatch():
                asked.update(batch.items)
            case AdoptCall():
                asked.add(batch.request)
            case AbandonBatch():
                leaving.update(batch.items)
            case _:
                pass
    adopting.update(call.request for call in state.calls if isinstance(call, AdoptCall))
    waiting, numbered = state.waiting.keys(), set(state.requests.values())
    for number, request in state.requests.items():
        if request.number != number or number > state.identity.last_number:
            yield f"{number} is known for request {request.number}"
    for each in {*new, *numbered, *waiting}:
        places = new[each], each in numbered, each in waiting
        right = False
        match each.state:
            case RequestState.NEW:
                right = places == (each not in adopting, each.number > 0, False)
                right &= each in adopting or each.was_sent is (each.number > 0)
            case RequestState.SENT:
                right = places == (0, True, False) and each in asked
            case RequestState.WAITING:
                right = places == (0, True, True)
            case RequestState.GRANTED:
                right = places == (0, True, False) and state.leases.get(each.number) is each.lease
            case RequestState.DONE:
                right = not places[2]
                right &= not places[1] or each in leaving
        if not right:
            yield f"request {each.number} is {each.state.name} and in {places}"


# -- of the keys


def of_keys(kept: Contents, look: Look) -> Iterator[str]:
    """What is wrong with the keys of a semaphore after a script, unless some of them were lost."""
    contents = defaultdict[str, Mapping[str, Any]](dict, kept)
    meta, holders = contents["meta"], contents["holders"]
    if holders:
        facts = [text.split(":") for text in contents["facts"].values()]
        if holders.keys() != contents["facts"].keys():
            yield f"{holders.keys() ^ contents['facts'].keys()} have facts or hold, not both"
        heavy = sum(int(permits) - 1 for _, permits, *_ in facts)
        if int(meta.get("heavy", 0)) != heavy:
            yield f"meta.heavy is {meta.get('heavy')}, and not {heavy}"
    counter = int(meta.get("counter", 0))
    issued = [held.token for held in look.holders.values()]
    if max((*issued, *(int(w.ticket) for w in look.line)), default=0) > counter:
        yield f"the counter is {counter}, and has issued more"
    if meta and (look.ends["meta"] or 0) < counter // 1000:
        yield f"meta ends at {look.ends['meta']}, and the counter is {counter}"
    yield from _of_looked(meta, look.line if contents["hubs"] else ())
    if "lines" in contents or contents["uses"]:
        yield from _of_lines(contents, look)
    else:
        yield from _of_passed(meta, look)


def _of_looked(meta: Mapping[str, str], line: Iterable[Waiter]) -> Iterator[str]:
    """The queue has no request of a hub that had died when it was looked through."""
    at, _, upto = meta.get("looked", "").partition(":")
    for waiter in line if at else ():
        if waiter.alive_until <= int(at) and waiter.ticket < float(upto or "inf"):
            yield f"{waiter.id} died at {waiter.alive_until}, and meta.looked is {at}"


def _of_passed(meta: Mapping[str, str], look: Look) -> Iterator[str]:
    """No request that is known not to fit fits."""
    ticket, used, of = (
        passed if len(passed := meta.get("passed", "").split(":")) == 3 else ("", "", "")
    )
    if not ticket or of != ("-" if look.set_limit is None else str(look.set_limit)):
        return
    for waiter in look.line:
        most = _limit_for(waiter, look)
        if waiter.ticket <= float(ticket) and int(used) + waiter.request.permits <= most:
            yield f"{waiter.id} fits beside {used}, and meta.passed is {meta['passed']}"


def _limit_for(waiter: Waiter, look: Look) -> int:
    return limit_in_force(waiter.request.limit, look.set_limit, slotted=look.slotted)


def _of_lines(contents: Contents, look: Look) -> Iterator[str]:
    """Each request has its line, and a key is ready if its first request fits under its limit."""
    queue, uses = contents["queue"], Counter[str]()
    lines = {f"{text.split(':')[-1]}!{ticket:017.0f}:{text}" for text, ticket in queue.items()}
    if lines ^ contents["lines"].keys():
        yield f"{lines ^ contents['lines'].keys()} wait or have lines, not both"
    for text in contents["facts"].values():
        _, permits, _, key = text.split(":")
        uses[key] += int(permits)
    found = Counter({key: int(used) for key, used in contents["uses"].items() if used})
    if not contents["holders"]:  # all may have ended with their key, and the next call counts anew
        uses = found
    if found != uses:
        yield f"{found} are in use, and not {uses}"
    count, meta = len(contents["key-limits"]), contents["meta"]
    right_for = f"{'-' if look.set_limit is None else look.set_limit}{f'/{count}' * (count > 0)}"
    if not queue or meta.get("ready_for") != right_for:
        return
    ready, shares = {"!": math.inf}, dict[str, float]()
    for key, head in _heads(look).items():
        terms, of_all = head.request.key, look.key_limits
        most = math.inf if terms is None or terms.limit is None else terms.limit
        most = most if terms is None else of_all.get(terms.key, most)
        if f"back_off:{key}" in meta:
            ready |= {key: contents["ready"][key]} if key in contents["ready"] else {}
        elif uses[key] + head.request.permits <= most:
            ready[key] = head.patience_ends if look.shares else head.ticket
        shares[key] = uses[key] / terms.weight if terms else 0.0
    # A line of which a part is too heavy may not be read to its end yet.
    unread = {key for key in contents["ready"] if f"passed:{key}" in meta}
    ready |= {key: contents["ready"][key] for key in unread}
    if ready != contents["ready"]:
        yield f"{contents['ready']} are ready, and not {ready}"
    if look.shares and contents["turns"]:
        turns = {text.split(":")[-1]: score for text, score in contents["turns"].items()}
        right = {key: turns[key] if key in unread else shares[key] for key in ready if key != "!"}
        if turns.keys() != right.keys() or any(abs(turns[k] - right[k]) > 1e-5 for k in turns):
            yield f"{turns} have their turns, and not {right}"


def _heads(look: Look) -> dict[str, Waiter]:
    """The first request of each key that is not too heavy for the limit in force."""
    heads = dict[str, Waiter]()
    for waiter in look.line:
        if waiter.request.permits <= _limit_for(waiter, look):
            heads.setdefault(quote(waiter.key or "", safe=""), waiter)
    return heads
