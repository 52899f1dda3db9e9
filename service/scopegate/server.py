"""The HTTP server: uvicorn, which ends jobs and those who listen to them before it waits for requests to end."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from scopegate.jobs import Jobs


class Server(uvicorn.Server):
    """Without this, one listener would hold a stop until its time is up, and jobs would go on meanwhile."""

    def __init__(self, config: uvicorn.Config, jobs: Jobs) -> None:
        super().__init__(config)
        self._jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops in order."""
        await asyncio.gather(self._jobs.stop(), super().shutdown(sockets))
