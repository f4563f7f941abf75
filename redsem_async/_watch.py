"""Who is told what happens to permits: nobody, as a rule, and then that costs next to nothing.

What is told, and how, is in `_telling`, which is imported when somebody wants to hear it.
"""

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._events import Observer
    from ._telling import Teller

logger = logging.getLogger("redsem_async")


class Watch:
    """The observers of this process; the log is one of them while it is at DEBUG.

    Attributes:
        tellers: one for each of them.
        debug: whether the log was at DEBUG when it was last looked at.
    """

    __slots__ = ("_lock", "debug", "tellers")

    def __init__(self) -> None:
        self.tellers: tuple[Teller, ...] = ()
        self.debug: bool = False
        self._lock = threading.Lock()  # event loops may run in several threads

    def begin(self, observer: "Observer") -> bool:
        """Tell *observer* from now on. Returns whether that is new."""
        from ._telling import Teller

        with self._lock:
            if any(teller.observer is observer for teller in self.tellers):
                return False
            self.tellers = (*self.tellers, Teller(observer))
            return True

    def end(self, observer: "Observer") -> None:
        """Tell *observer* nothing more."""
        with self._lock:
            for teller in self.tellers:
                if teller.observer is observer:
                    teller.stopped = True
            self.tellers = tuple(teller for teller in self.tellers if not teller.stopped)

    def follow_level(self) -> None:
        """The level of the log has changed."""
        from ._telling import LOG

        self.debug = logger.isEnabledFor(logging.DEBUG)
        (self.begin if self.debug else self.end)(LOG)

    def begin_anew(self) -> None:
        """We are a forked child: the observers are ours, what they know of is the parent's."""
        self._lock = threading.Lock()
        observers = [teller.observer for teller in self.tellers]
        self.tellers = ()
        for observer in observers:
            self.begin(observer)


watch = Watch()
