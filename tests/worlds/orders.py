"""The book of orders: what takes effect once, while somebody asks for it, and never by itself."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, cast

import redsem_async._protocol.operations as op
from redsem_async import AnySemaphore, FairSemaphore
from redsem_async._protocol.replies import Reply
from tests.worlds.judge import Broken
from tests.worlds.look import Look, Ran

if TYPE_CHECKING:
    from tests.worlds.process import Process
    from tests.worlds.world import World

AT_MOST_ONCE = "an order takes effect at most once"
LIMIT, DELETE, BACK_OFF = "limit", "delete", "back-off"
Effect = tuple[str, int | None]  # such as a limit, of all or of a key


def of_key(key: str) -> str:
    return f"limit of {key}"


@dataclass(eq=False)
class Order:
    """One that was given up may still come late, until its process was answered another."""

    by: "Process"
    effect: Effect
    asked: float
    given_up: float = math.inf
    hubs: int = 0  # by how many its process was known when it was given up
    ended: float = math.inf  # from when on it must have no effect
    done: bool = False


class Orders:
    """The orders for one semaphore."""

    def __init__(self, world: "World") -> None:
        self.limits: dict[str, int | None] = {}  # in force
        self._world = world
        self._orders: list[Order] = []
        self._were: defaultdict[str, list[tuple[float, int | None]]]
        self._were = defaultdict(lambda: [(-math.inf, None)])  # from when on which was set

    @property
    def standing(self) -> list[tuple[object, ...]]:
        """What the rules depend on."""
        return [
            (o.effect, o.done, o.ended < math.inf, o.given_up < math.inf) for o in self._orders
        ]

    # -- what the clients ask for

    def ordered(self, by: "Process", what: str, value: int | None = None) -> Order:
        order = Order(by, (what, value), self._world.now)
        self._orders.append(order)
        return order

    async def carry_out(
        self, by: "Process", semaphore: AnySemaphore, what: str, limit: int | None = None
    ) -> None:
        """Set a limit, of all or of a key, or delete."""
        order = self.ordered(by, what, limit)
        try:
            if what == DELETE:
                await semaphore.delete()
            elif what == LIMIT:
                await semaphore.set_limit(limit)
            else:
                keyed = cast("FairSemaphore", semaphore)
                await keyed.set_limit(limit, key=what.rpartition(" ")[2])
        except BaseException:
            order.given_up, order.hubs = self._world.now, len(by.hubs)
            raise
        self._obeyed(order)

    def _obeyed(self, order: Order) -> None:
        """*order* was answered: it took effect, and will not again."""
        now, (what, value) = self._world.now, order.effect
        order.ended = now
        for earlier in self._orders:
            # Only the commands of one hub are in order: a client that was closed has another.
            same = earlier.by is order.by and earlier.hubs == len(order.by.hubs)
            if same and earlier.given_up < order.asked:
                earlier.ended = min(earlier.ended, now)
        if not order.done and what != DELETE:
            were = self._were[what]
            first = bisect_left(were, order.asked, key=itemgetter(0)) - 1
            since = [limit for _, limit in were[max(first, 0) :]]
            self._world.unless(value in since, f"a {what} of {value} was not set")

    # -- what happens

    def ran(self, ran: Ran) -> Iterator[Broken]:
        """What took effect by a call, and should not have."""
        for effect in self._effects(ran):
            what, value = effect
            fit = [
                order
                for order in self._orders
                if order.effect == effect
                and ran.hub in order.by.hubs
                and not order.done
                and order.ended >= self._world.now
            ]
            if not fit:
                detail = f"{what}, {value}, took effect, and nobody asks now ({ran.call})"
                yield Broken(AT_MOST_ONCE, detail)
            else:
                min(fit, key=attrgetter("ended")).done = True

    def _effects(self, ran: Ran) -> Iterator[Effect]:
        before, call, _, answer, after, _ = ran
        changed = self._changed(after)
        if not isinstance(call, op.Delete):
            yield from changed
        elif before != after and not before.idle:
            yield DELETE, None
        of_permit = isinstance(call, op.StartBackOff) and call.token is not None
        if of_permit and isinstance(answer, Reply) and answer.answers[0]:
            yield BACK_OFF, None

    def _changed(self, after: Look) -> list[Effect]:
        limits = {of_key(key): limit for key, limit in after.key_limits.items()}
        found: dict[str, int | None] = {LIMIT: after.set_limit, **limits}
        if found == self.limits:
            return []
        names = {*found, *self.limits}
        changed = [(n, found.get(n)) for n in names if found.get(n) != self.limits.get(n)]
        for what, value in changed:
            self._were[what].append((self._world.now, value))
        self.limits = found
        return changed

    def forgot(self, after: Look) -> None:
        """The server forgot some of it: what is asked for still is carried out anew."""
        self._changed(after)
        for order in self._orders:
            order.done = False
