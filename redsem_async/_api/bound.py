"""A semaphore in one event loop."""

import asyncio
from typing import NamedTuple

from redsem_async._hub.refresher import Refresher
from redsem_async._hub.remote_semaphore import RemoteSemaphore


class Bound(NamedTuple):
    """What a semaphore object is bound to in the event loop that it is used in."""

    remote: RemoteSemaphore
    refresher: Refresher
    loop: asyncio.AbstractEventLoop
