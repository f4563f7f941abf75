"""Facts and rules that everything else uses, and that use nothing else.

`errors` has the exceptions, `config` the validated arguments, `keys` the names in Redis and the
ids of permits, `lease` the rules of time and trust, `backoff` the delays between attempts,
`clock` the clock that trust is counted by, and `cancellation` a wait that survives
cancelled.

May import the standard library, and anyio in `cancellation`. Rules take instants as arguments,
so that they can be read and tested without a clock or an event loop. Start with `lease`.
"""
