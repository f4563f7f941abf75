"""Facts and rules that everything else uses, and that use nothing else.

May import the standard library, and anyio in `cancellation`. Rules take instants as arguments,
so that they can be read and tested without a clock or an event loop. Start with `lease`.
"""
