"""Channel from a rank of a trial to the search: one JSON object a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


def tell(channel: socket.socket, answer: dict[str, Any]) -> None:
    """Sends one answer."""
    channel.sendall(json.dumps(answer).encode() + b"\n")
