"""A proxy that delays all traffic, to simulate the network of a data centre.

A separate process with threads that sleep until data is due. An event loop would be less precise,
because its timers have a resolution of a millisecond.
"""

import asyncio
import multiprocessing
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from benchmarks._bench import allow_many_files

_SWITCH = 0.0002  # seconds; the switch interval of threads


@asynccontextmanager
async def slowed(url: str, delay: float) -> AsyncGenerator[str]:
    """A URL of the same server through a proxy that adds *delay* seconds each way."""
    parts = urlsplit(url)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = (parts.hostname or "localhost", parts.port or 6379)
    process = context.Process(target=_main, args=(theirs, server, delay), daemon=True)
    await asyncio.to_thread(process.start)
    theirs.close()
    try:
        port = await asyncio.to_thread(ours.recv)
        credentials, at, _ = parts.netloc.rpartition("@")
        yield parts._replace(netloc=f"{credentials}{at}127.0.0.1:{port}").geturl()
    finally:
        process.kill()
        await asyncio.to_thread(process.join)
        ours.close()


def _main(pipe: Connection, server: tuple[str, int], delay: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH)
    allow_many_files()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    pipe.send(listener.getsockname()[1])
    threading.Thread(target=_accept, args=(listener, server, delay), daemon=True).start()
    with suppress(EOFError):
        pipe.recv()  # ends when the parent ends


def _accept(listener: socket.socket, server: tuple[str, int], delay: float) -> None:
    while True:
        client, _ = listener.accept()
        upstream = socket.create_connection(server)
        for one, other in ((client, upstream), (upstream, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_read, args=(one, other, delay), daemon=True).start()


def _read(source: socket.socket, target: socket.socket, delay: float) -> None:
    """Read data, and queue it with the time at which another thread writes it."""
    queued: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_write, args=(queued, target), daemon=True).start()
    while True:
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        queued.put((time.monotonic() + delay, data))
        if not data:
            return


def _write(queued: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
    while True:
        due, data = queued.get()
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
        try:
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
        except OSError:
            return
