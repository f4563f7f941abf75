"""python -m redsem_async.testing [ARGUMENT...]: run a private server until Ctrl-C.

Arguments are the server's own, as those of redsem_async.testing.embedded_redis.
"""

import contextlib
import sys
import threading

from . import ServerDidNotStart, ServerNotFound, embedded_redis


def main() -> None:
    if {"-h", "--help"} & {*sys.argv}:
        sys.stdout.write(str(__doc__))
        return
    try:
        with embedded_redis(*sys.argv[1:]) as server, contextlib.suppress(KeyboardInterrupt):
            sys.stdout.write(f"export REDIS_URL={server.url}\n")
            sys.stdout.flush()
            threading.Event().wait()
    except (ServerNotFound, ServerDidNotStart, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
