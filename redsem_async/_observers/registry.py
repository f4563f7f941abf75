"""The registry of observers. It is usually empty, and notifying is a loop over an empty tuple.

`notifier` turns facts into events. It is imported when the first observer registers.
"""

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .events import Observer
    from .notifier import Notifier

logger = logging.getLogger("redsem_async")


class ObserverRegistry:
    """The observers of this process. The log is one of them while its level is DEBUG.

    Attributes:
        notifiers: one for each observer.
        debug: whether the log's level was DEBUG when it was last looked at.
    """

    __slots__ = ("_lock", "debug", "notifiers")

    def __init__(self) -> None:
        self.notifiers: tuple[Notifier, ...] = ()
        self.debug: bool = False
        self._lock = threading.Lock()  # event loops may run in several threads

    def add(self, observer: "Observer", *, keys: bool = False) -> bool:
        """Notify *observer* from now on. Returns False where it is registered already.

        With *keys*, its events carry the keys of requests.
        """
        from .notifier import Notifier

        with self._lock:
            if any(notifier.observer is observer for notifier in self.notifiers):
                return False
            self.notifiers = (*self.notifiers, Notifier(observer, keys=keys))
            return True

    def remove(self, observer: "Observer") -> None:
        """Stop notifying *observer*."""
        with self._lock:
            for notifier in self.notifiers:
                if notifier.observer is observer:
                    notifier.stopped = True
            self.notifiers = tuple(each for each in self.notifiers if not each.stopped)

    def follow_level(self) -> None:
        """Add or remove the log, because its level has changed."""
        from .log import LOG

        self.debug = logger.isEnabledFor(logging.DEBUG)
        (self.add if self.debug else self.remove)(LOG)

    def forget_parent(self) -> None:
        """In a forked child, keep the observers but forget the parent's permits."""
        self._lock = threading.Lock()
        known = self.notifiers
        self.notifiers = ()
        for notifier in known:
            self.add(notifier.observer, keys=notifier.keys)


observers = ObserverRegistry()
