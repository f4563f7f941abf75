"""The specification with a rule taken out: the search must find what the rule is for."""

from collections.abc import Sequence

from redsem_async._keys import Address, permit_id
from redsem_async._protocol import Acquire, Answer, Answered, Call, Reply, Request
from redsem_async.testing._model import FairModel, Step, Waiter, ZsetModel

from .scenario import Scenario
from .server import HUBS


class FairWithoutMark(FairModel):
    """An id that is not known is granted, however old its number is."""

    def _ask(self, step: Step, call: Acquire, request: Request, fresh: int, most: int) -> Answer:
        identity = permit_id(step.hub, request.number)
        if self.found(identity, step.now) or self._in_line(step.hub, request):
            return super()._ask(step, call, request, fresh, most)
        return super()._ask(step, call, request, 0, most)


class ZsetWithoutMark(ZsetModel):
    """An id that is not known is granted, however old its number is."""

    def _acquire(self, step: Step, call: Acquire) -> Reply:
        ids = [permit_id(step.hub, number) for number in call.numbers]
        if not any(self.found(identity, step.now) for identity in ids):
            self.party(step.hub).mark = 0
        return super()._acquire(step, call)


class WithoutNextMoment(FairModel):
    """Nobody is told when something may change by itself."""

    def _reply(self, step: Step, answers: Sequence[Answer] = (), room: int = 0) -> Reply:
        return super()._reply(step, answers, room)._replace(next_ms=None)


class WithoutHeadsTime(FairModel):
    """The next moment is the next expiry, whoever stands at the head."""

    def _reply(self, step: Step, answers: Sequence[Answer] = (), room: int = 0) -> Reply:
        step.head_until = None
        return super()._reply(step, answers, room)


class HintsWithoutEnd(ZsetModel):
    """Who takes nothing passes a hint on to anybody, itself among them."""

    def _serve(self, step: Step) -> None:
        step.asks = step.passes = False
        super()._serve(step)


def by_the_callers_limit(scenario: Scenario) -> type[FairModel]:
    """The line is served by the limit of whoever calls."""

    class ByTheCallersLimit(FairModel):
        def run(self, address: Address, call: Call, hub: str, now_us: int) -> Answered:
            self.most = scenario.limits[HUBS.index(hub)] if hub in HUBS else None
            return super().run(address, call, hub, now_us)

        def _plan(
            self, step: Step, passed: set[str]
        ) -> tuple[list[tuple[Waiter, int]], Waiter | None]:
            if self.most is None:
                return super()._plan(step, passed)
            own = {waiter.ticket: waiter.request for waiter in self.line}
            for waiter in self.line:
                waiter.request = waiter.request._replace(limit=self.most)
            plan = super()._plan(step, passed)
            for waiter in [*self.line, *(waiter for waiter, _ in plan[0])]:
                waiter.request = own[waiter.ticket]
            return plan

    return ByTheCallersLimit
