"""What the two modes do differently, most of it for claims that wait."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from redsem_async._protocol.operations import Acquire, Heartbeat, Unusual
from redsem_async._protocol.replies import Reply

from .claim import Claim, LineReport
from .heartbeat_timer import HeartbeatTimer
from .ledger import Ledger

Exceptional = Mapping[int, Unusual]
"""By number: claims for more than one permit, that do not wait, or that have a head start."""


class Waiters(ABC):
    """Base of the two modes: what is written for waiters, and what replies mean for them."""

    def __init__(self, ledger: Ledger, heartbeats: HeartbeatTimer) -> None:
        self._ledger = ledger
        self._heartbeats = heartbeats
        self.hint: int = 0
        """Permits of a hint, to be used or passed on (zset)."""
        self.unsorted: bool = False
        """Claims are to be written before others that came earlier."""

    # -- commands

    @abstractmethod
    def acquire(self, claims: Sequence[Claim], exceptional: Exceptional) -> Acquire:
        """The operation with which *claims*, all with the same terms, ask for permits."""

    @abstractmethod
    def heartbeat(self, asked: Sequence[Claim]) -> Heartbeat:
        """The operation that keeps the process alive there, and asks about some waiters."""

    def asked_about(self) -> Sequence[Claim]:
        """The waiters that the next heartbeat asks about."""
        return ()

    def join(self, claim: Claim) -> bool:
        """Have a new claim wait behind others here. Returns False where it is to be written."""
        return False

    def kept(self, owner: str, permits: int) -> int:
        """How many of *permits* that are given back this process takes again itself."""
        return 0

    @property
    def lets_others_ask_first(self) -> bool:
        """Whether new claims are written after the replies to releases in flight (zset)."""
        return False

    @property
    def hint_is_young(self) -> bool:
        """Whether passing the hint on is worth a new connection."""
        return False

    # -- replies

    @abstractmethod
    def must_wait(self, claims: Sequence[Claim]) -> None:
        """The server replied to *claims*, in this order, that they have to wait."""

    @abstractmethod
    def line_reported(self, report: LineReport) -> None:
        """An acquire or a heartbeat got its reply, for whichever claims."""

    def announced(self, waits: int) -> None:
        """A command that got its reply now said that so many wait here."""

    @abstractmethod
    def apply(self, reply: Reply) -> None:
        """Apply what a reply says about the semaphore as a whole."""

    @property
    @abstractmethod
    def behind(self) -> bool:
        """Whether other processes are likelier to be served first."""

    def found_gone(self, claims: Sequence[Claim]) -> None:
        """The server replied to a heartbeat that it does not know *claims* any more."""

    # -- push messages and the connection

    def hinted(self, permits: int) -> None:
        """So many permits are free to try for."""

    def hint_unsent(self, permits: int) -> None:
        """A command was not carried out that said what becomes of a hint of *permits*."""

    def left(self) -> None:
        """The caller of a waiter left."""

    def reconnected(self) -> None:
        """There is a new connection."""

    def forget_in_flight(self) -> None:
        """The connection was closed on purpose: no reply will come."""
