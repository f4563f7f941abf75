"""The suite under exactly the documented user, with ``REDSEM_TEST_ACL=1``.

What the library connects by itself logs in as a user that may do what `_acl.py` says and nothing
else. Clients of redis-py are left as they are: tests look into the server through them, and hurt
it. So no test knows of this, and no server has to be prepared.

A client with a user of its own keeps that. Processes that tests start come here through
``sitecustomize``, which is on their path.
"""

import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

REQUESTED = os.environ.get("REDSEM_TEST_ACL") == "1"
USER = "redsem-suite"
BESIDE: set[str] = set()  # commands of the tests' own, within the scripts that they change
_PASSWORD = "semaphores-only"


def restrict() -> None:
    """From now on, in this process and in those that it starts."""
    untyped: Any = AbstractConnection
    made: Any = untyped.__init__
    greet: Any = untyped.on_connect_check_health

    @wraps(made)
    def make(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        self.of_the_library = _is_made_by_the_library()

    @wraps(greet)
    async def greet_as_user(self: Any, *arguments: Any, **options: Any) -> None:
        await greet(self, *arguments, **options)
        if self.of_the_library and not self.username:
            try:
                await _allow(self, sharded=True)
            except ResponseError:  # 6.2 knows no such messages
                await _allow(self, sharded=False)
            self.username, self.password = USER, _PASSWORD
            await greet(self, *arguments, **options)

    untyped.__init__ = make
    untyped.on_connect_check_health = greet_as_user
    here = str(Path(__file__).parent / "started")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])


async def _allow(connection: Any, *, sharded: bool) -> None:
    # Imported here: a process that does not use the library has none of it.
    from redsem_async._redis.acl import ADDITIONS, acl_rules

    additions = ADDITIONS if sharded else ADDITIONS.keys() - {"no_time", "sharded"}
    own = (f"+{command}" for command in BESIDE)
    rules = ("on", f">{_PASSWORD}", *acl_rules(additions=additions), *own)
    await connection.send_command("ACL", "SETUSER", USER, "reset", *rules)
    await connection.read_response()


def _is_made_by_the_library() -> bool:
    """Whether the connection that is being made is the library's, and not one for a pool."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("redis."):
        if frame.f_code.co_name == "make_connection":  # a sentinel's client, while we connect
            return False
        frame = frame.f_back
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith("redsem_async._")
