"""What push messages bring about."""

import math

from redsem_async._protocol.pushes import Cleared, Granted, Push, Recalled, Recheck, Revoked

from .remote_semaphore import RemoteSemaphore


def apply_push(remote: RemoteSemaphore, push: Push, fresh_at: float | None) -> None:
    """Apply a push message. The newest command with a reply was sent at *fresh_at*."""
    match push:
        case Granted(grants=grants):
            # The server had carried out that command before it granted these.
            sent_at = -math.inf if fresh_at is None else fresh_at
            for number, holding in grants:
                left = holding.left_ms / 1000
                remote.handout.granted(number, holding.token, left, sent_at, holding.slots)
        case Revoked(numbers=numbers):
            remote.revoked(numbers)
        case Cleared():
            remote.cleared()
        case Recalled():
            remote.ledger.right.recalled()
        case Recheck():
            if remote.ledger.waiting:
                remote.heartbeats.beat()
