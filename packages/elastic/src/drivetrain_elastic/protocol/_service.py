"""The calls of the master's service, for servers and clients alike."""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import message_factory

from drivetrain_elastic.protocol import messages

API = "1"
"""The version of the service that this package speaks."""

MAX_MESSAGE_BYTES = 16 << 20
"""What a message may have; a larger one is refused before it is read."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy is for what is outside: it does not reach a master, and would see the token.
    ("grpc.enable_http_proxy", 0),
)
"""Of every channel to a master."""

_AUTHORIZATION, _API = "authorization", "drivetrain-api"


class Method(NamedTuple):
    """A call of the service.

    Attributes:
        path: How gRPC calls it.
        request: The class of what is sent.
        reply: The class of what comes back.
        sends_many: Whether the client sends a stream.
        gets_many: Whether the server does.
    """

    path: str
    request: Any
    reply: Any
    sends_many: bool
    gets_many: bool

    @property
    def kind(self) -> str:
        """The form of the call, as gRPC names it: `unary_unary`, for example."""
        return f"{_form(self.sends_many)}_{_form(self.gets_many)}"


def _form(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


def _methods(service: Any) -> dict[str, Method]:
    return {
        method.name: Method(
            path=f"/{service.full_name}/{method.name}",
            request=message_factory.GetMessageClass(method.input_type),
            reply=message_factory.GetMessageClass(method.output_type),
            sends_many=method.client_streaming,
            gets_many=method.server_streaming,
        )
        for method in service.methods
    }


(_described,) = messages.DESCRIPTOR.services_by_name.values()

SERVICE: str = _described.full_name
"""What gRPC calls the service."""

METHODS = _methods(_described)
"""Its calls, by name."""


def credentials(token: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata that every call carries.

    Args:
        token: Of the job.

    Example:
        >>> credentials("secret")
        (('authorization', 'Bearer secret'), ('drivetrain-api', '1'))
    """
    return ((_AUTHORIZATION, f"Bearer {token}"), (_API, API))
