"""The observers of this process, usually none. `notifier` is imported with the first."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .notifier import Event, Notifier

logger = logging.getLogger("redsem_async")


class ObserverRegistry:
    """The notifiers, one for each observer. The log is an observer while its level is DEBUG."""

    def __init__(self) -> None:
        self.notifiers: tuple[Notifier, ...] = ()
        self.debug: bool = False  # whether the level was DEBUG when it was last looked at
        self._lock = threading.Lock()  # event loops may run in several threads

    def add(self, observer: "Callable[[Event], object]", *, keys: bool = False) -> bool:
        """Notify *observer* from now on. Returns False if it was added before."""
        from .notifier import Notifier

        with self._lock:
            if any(notifier.observer == observer for notifier in self.notifiers):
                return False
            self.notifiers = (*self.notifiers, Notifier(observer, keys=keys))
            return True

    def remove(self, observer: "Callable[[Event], object]") -> None:
        """Stop notifying *observer*, at once."""
        with self._lock:
            for notifier in self.notifiers:
                notifier.stopped |= notifier.observer == observer
            self.notifiers = tuple(each for each in self.notifiers if not each.stopped)

    def follow_level(self) -> None:
        """Add or remove the log, because its level has changed."""
        from .notifier import log

        self.debug = logger.isEnabledFor(logging.DEBUG)
        (self.add if self.debug else self.remove)(log)

    def forget_parent(self) -> None:
        """In a forked child, keep the observers but forget the parent's permits."""
        self._lock = threading.Lock()
        known, self.notifiers = self.notifiers, ()
        for notifier in known:
            self.add(notifier.observer, keys=notifier.keys)


observers = ObserverRegistry()
