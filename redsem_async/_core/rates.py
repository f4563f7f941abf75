"""How much may be granted in a given time, in addition to the limit."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

MOST_RATES = 4
LONGEST_PER = 3600.0  # seconds
LONGEST_COST = 86400.0  # seconds, in which a rate allows so much

_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
Cost = float | Mapping[str, float]
"""What a request costs, as a number if there is one rate, or a number for each by its name."""


@dataclass(frozen=True, repr=False)
class Rate:
    """*amount* may be granted in each *per* seconds, and up to *burst* after a quiet time.

    Args:
        amount: number of requests, of tokens or of what else is counted, positive and finite.
        per: seconds, up to 3,600.
        burst: the most that is granted without waiting, by default what one second allows, and at
            least 1. In any *t* seconds at most ``amount * t / per + burst`` are granted.

    The algorithm is the generic cell rate algorithm (ITU-T I.371), a leaky bucket without a timer.
    """

    amount: float
    per: float = 1.0
    burst: float | None = None

    def __post_init__(self) -> None:
        for what in ("amount", "per", "burst"):
            value = getattr(self, what)
            if value is not None and not 0 < _number(value, f"{what} of a rate") < math.inf:
                raise ValueError(f"{what} of a rate must be a finite number > 0, not {value!r}")
        if self.per > LONGEST_PER:
            advice = "a budget for a day or a month is kept where it is billed"
            raise ValueError(f"per of a rate is at most {LONGEST_PER:.0f} seconds: {advice}")
        if self.time_for(self.most) > LONGEST_COST:
            raise ValueError(f"burst of {self} takes more than a day to come back")

    def __repr__(self) -> str:
        per = f", per={self.per!r}" if self.per != 1.0 else ""
        burst = f", burst={self.burst!r}" if self.burst is not None else ""
        return f"Rate({self.amount!r}{per}{burst})"

    @property
    def most(self) -> float:
        """The burst, or its default."""
        return max(1.0, self.amount / self.per) if self.burst is None else self.burst

    def time_for(self, cost: float) -> float:
        """The number of seconds in which the rate allows *cost*."""
        return cost * self.per / self.amount

    def us(self, cost: float) -> int:
        """The same in microseconds, rounded up."""
        return math.ceil(round(1e6 * self.time_for(cost), 3))


def rates_of(rate: object) -> dict[str, Rate]:
    """The rates that a semaphore declares, in the order of their names.

    *rate* is a rate, which is that of requests, or a mapping of names to rates, or None.
    """
    if rate is None:
        return {}
    rates: Mapping[object, object] = {"requests": rate}
    if isinstance(rate, Mapping):
        rates = cast("Mapping[object, object]", rate)
    if not 1 <= len(rates) <= MOST_RATES:
        raise ValueError(f"rate may name 1 to {MOST_RATES} rates, not {len(rates)}")
    found: dict[str, Rate] = {}
    for name in sorted(rates, key=str):
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            allowed = "1 to 64 letters, digits, dots, dashes and underscores"
            raise ValueError(f"the name of a rate must have {allowed}, not {name!r}")
        if not isinstance(each := rates[name], Rate):
            raise TypeError(
                f"rate must be a Rate, or a dict of Rates by their names, not {rate!r}"
            )
        found[name] = each
    return found


def costs_of(rates: Mapping[str, Rate], cost: Cost | None) -> list[float]:
    """What a permit takes from each of *rates*. One of ``requests``, or the only one, is 1."""
    if not rates:
        raise TypeError("a cost needs a FairSemaphore with rate=")
    costs: Mapping[str, float]
    if isinstance(cost, Mapping):
        costs = cost
    elif cost is not None and len(rates) > 1:
        names = ", ".join(map(repr, rates))
        raise TypeError(f"cost must be a dict, because there are several rates: {names}")
    else:
        costs = {} if cost is None else dict.fromkeys(rates, cost)
    if unknown := costs.keys() - rates.keys():
        raise ValueError(f"cost names {min(map(repr, unknown))}, and there is no such rate")
    return [_cost_of(name, rate, costs, alone=len(rates) == 1) for name, rate in rates.items()]


def _cost_of(name: str, rate: Rate, costs: Mapping[str, float], *, alone: bool) -> float:
    if name not in costs and not alone and name != "requests":
        raise TypeError(f"cost must say what the request takes from rate {name!r}")
    cost = _number(costs.get(name, 1.0), f"cost of {name!r}")
    if not 0 <= rate.time_for(cost) <= LONGEST_COST:
        least = "takes more than a day" if cost > 0 else "is below 0"
        raise ValueError(f"a cost of {cost:g} {least}: {name!r} is {rate}")
    return cost


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} is too large") from None
    if math.isnan(number):
        raise ValueError(f"{what} must be a number, not NaN")
    return number


def in_queue(rates: Mapping[str, Rate], costs: Sequence[float]) -> str:
    """*costs* with the burst of each rate, as the queue has them: ``:us/us+...``."""
    pairs = zip(rates.values(), costs, strict=True)
    return ":" + "+".join(f"{rate.us(cost)}/{rate.us(rate.most)}" for rate, cost in pairs)


def settled(rates: Mapping[str, Rate], costs: Sequence[float], asked: str) -> str:
    """How much more than *asked* for in the queue, or less, *costs* are: ``us+...``."""
    before = (int(pair.partition("/")[0]) for pair in asked[1:].split("+"))
    pairs = zip(rates.values(), costs, before, strict=True)
    return "+".join(str(rate.us(cost) - us) for rate, cost, us in pairs)


def told_rates(rates: Mapping[str, Rate]) -> dict[str, list[float]]:
    """What a process tells others of its *rates*."""
    return {name: [rate.amount, rate.per, rate.most] for name, rate in rates.items()}


def rates_told(fact: object) -> dict[str, Rate]:
    """The rates that another process told. No rates if it did not tell them so."""
    told = cast("dict[str, list[float]]", fact if isinstance(fact, dict) else {})
    try:
        return {name: Rate(*each) for name, each in told.items()}
    except (TypeError, ValueError):
        return {}
