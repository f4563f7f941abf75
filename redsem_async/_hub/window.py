"""How many commands may be in flight, and how large they grow."""

import math

from .state import MAX_BATCH

WINDOW = 3  # commands in flight. Further requests wait, and make larger batches
FAR = 0.0005  # seconds of round trip, for each of which one more command may be in flight
MAX_WINDOW = 8
FAR_BATCH = 32  # requests that a far server is sent at once, before others can join them


class Window:
    """The longer the round trip, the more commands may be in flight.

    Attributes:
        size: how many commands may be in flight.
        batch_target: how many requests make a command that need not wait for others to join.
        lone: whether what was written last was for one request alone. Such a client gets its next
            request written at once, rather than at the end of the turn of the loop.
    """

    def __init__(self) -> None:
        self.size: int = WINDOW
        self.batch_target: int = MAX_BATCH
        self.lone: bool = False

    def fit(self, round_trip: float) -> None:
        """The shortest round trip of this connection is *round_trip* seconds."""
        if math.isfinite(round_trip):
            self.size = min(WINDOW + int(round_trip / FAR), MAX_WINDOW)
            self.batch_target = FAR_BATCH if round_trip >= FAR else MAX_BATCH
