"""The keyword options of the semaphore classes."""

from collections.abc import Sequence
from typing import TypedDict

from redsem_async._core.config import Clock, Slot


class Options(TypedDict, total=False):
    """The keyword options of every semaphore class, except ``prefix``."""

    lease: float
    refresh_interval: float | None
    timeout: float | None
    max_waiters: int | None
    clock: Clock
    label: str | None
    cancel_on_loss: bool
    max_hold: float | None
    max_back_off: float
    slots: Sequence[Slot] | None
