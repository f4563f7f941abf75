"""Whom only rates hold up, and since when: somebody looks when they let it go.

Nobody polls. So its own process has to know when that is, and another one that looks a bit later,
in case the first stands still. Whoever was not told looks with a heartbeat, much later.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.worlds.judge import forgotten
from tests.worlds.look import Look, Waiter, costs_in

if TYPE_CHECKING:
    from tests.worlds.process import Link, Process
    from tests.worlds.world import World

STAGGER = 1.0  # seconds by which the other process looks later
SAMPLE = 20  # requests of which one is that other's


class Heads:
    """Looks at the semaphores of a world, as often as it is asked to."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._since: dict[str, tuple[object, float]] = {}  # which head, by the semaphore's name
        self._links: dict[Process, tuple[Link | None, float]] = {}  # over which each hears

    def late(self) -> Iterator[str]:
        """Those who should be granted by now."""
        now, world = self._world.now, self._world
        for process in world.processes:
            link = process.link if world.hears(process) else None
            if process not in self._links or self._links[process][0] is not link:
                self._links[process] = link, now
        for name, address in world.server.addresses.items():
            if not address.rated or "+share" in address.mode:  # whose turns change with time
                continue
            look = world.look(address)
            head = forgotten(replace(look, rates=())) if look.rates else None
            if head is None or name in world.server.doubtful:
                self._since.pop(name, None)
            elif (late := self._late(name, look, head)) > world.prompt:
                yield f"the rates of {name} let {head.id} go since {late:.3f} s, and nobody looks"

    def _late(self, name: str, look: Look, head: Waiter) -> float:
        """For how many seconds *head* should have been granted, by its process or the other."""
        hubs = {waiter.id.partition(".")[0] for waiter in look.line[:SAMPLE]}
        own = head.id.partition(".")[0]
        this = head.id, hubs
        which, since = self._since.get(name, (None, 0.0))
        if which != this:
            since = self._world.now
        self._since[name] = this, since
        costs = zip(look.rates, costs_in(head.request), strict=False)
        due_us = max(tat - max(0, burst - cost) for (tat, _), (cost, burst) in costs)
        due = (look.now_us - due_us) / 1e6
        others = min(map(self._heard_for, hubs - {own}), default=0.0)
        if due > self._world.now - since:
            return 0.0  # it is the next because a lease ended, and the rates hold nobody up
        return max(min(due, self._heard_for(own)), min(due - STAGGER, others))

    def _heard_for(self, hub: str) -> float:
        """For how many seconds its process has heard without a break."""
        process = self._world.owners.get(hub)
        link, since = self._links[process] if process else (None, 0.0)
        return self._world.now - since if link and link.subscribed(hub) else 0.0
