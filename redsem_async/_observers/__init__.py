"""Observers: what they may be notified of, and who notifies them.

`events` has the events and the base class of observers, which `redsem_async.observer` makes
public. `registry` has the observers of this process; the rest of the package loops over its
notifiers, which is an empty tuple as a rule. `notifier` turns facts into events, `log` is the
observer that writes DEBUG records. Both are imported when the first observer registers.

May import `_core` only: a notifier sees facts about a request or a permit, and does not know
where they are kept. Start reading with `events`.
"""
