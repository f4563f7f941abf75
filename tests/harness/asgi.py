"""Applications under uvicorn, in the event loop of the test."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def in_uvicorn(app: Any) -> AsyncGenerator[str]:
    """Serve *app* on a free port of this machine, without its lifespan. Yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, lifespan="off")
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await server.shutdown(sockets=[listener])
