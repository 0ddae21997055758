"""Stream of messages to one agent, in order, until it breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class AgentStream:
    """Messages on their way to an agent; used from one event loop."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        """Puts a message, or its bytes, on the way."""
        self._messages.put_nowait(message)

    def close(self) -> None:
        """Ends the stream when what is on the way has been sent."""
        self._messages.put_nowait(None)

    async def messages(self) -> AsyncIterator[Any]:
        """Yields messages until the stream is closed."""
        while (message := await self._messages.get()) is not None:
            yield message
