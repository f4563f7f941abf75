"""What travels between a client and the server, in few values that compare and hash."""

from typing import NamedTuple

from redsem_async._protocol import Holding

TOKEN = 1  # any fencing token: only that one was given matters to a client

Answer = int | Holding


class Command(NamedTuple):
    """A call on its way. *age* counts the ticks since it was sent."""

    kind: str  # acquire, release, refresh, abandon, beat
    numbers: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    after: int = 0
    waits: int = 0
    hinted: int = 0
    keep: int = 0
    age: int = 0

    def __str__(self) -> str:
        parts = [self.kind, *(str(number) for number in self.numbers)]
        if any(weight > 1 for weight in self.weights):
            parts.append(f"(weights {', '.join(map(str, self.weights))})")
        extras = {"hinted": self.hinted, "keep": self.keep, "waits": self.waits}
        parts += [f"{name}={value}" for name, value in extras.items() if value]
        return " ".join(parts)


class Said(NamedTuple):
    """A reply, and the command that it answers. Times in ticks."""

    command: Command
    answers: tuple[Answer, ...] = ()
    next_in: int | None = None
    line: int = 0
    granted: tuple[int, ...] = ()
    hinted: int = 0
    room: int = 0
    again: bool = False  # nothing happened: to be sent once more


class Told(NamedTuple):
    """A message: grants as (number, ticks left), or a hint."""

    grants: tuple[tuple[int, int], ...] = ()
    permits: int = 0

    def __str__(self) -> str:
        if self.grants:
            return ", ".join(f"{n} is granted for {left} ticks" for n, left in self.grants)
        return f"{self.permits} may be free"
