"""Observers, the events they may be notified of, and the notifiers.

`events` has the events and the base class of observers, which `redsem_async.observer` makes
public. `registry` has the observers of this process. The rest of the package loops over its
notifiers, usually an empty tuple. `notifier` turns facts into events, and `log` is the observer
that writes DEBUG records. Both are imported when the first observer registers.

May import `_core` only. A notifier sees facts about a request or a permit, and does not know
where they are kept. Start reading with `events`.
"""
