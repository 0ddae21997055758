"""Client of the master of a job."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import grpc

from drivetrain_core import DistributedError, ProgramError
from drivetrain_elastic._client._address import split_addresses
from drivetrain_elastic._client._tls import channel_credentials
from drivetrain_elastic._client._token import check_token
from drivetrain_elastic.protocol._service import CHANNEL_OPTIONS, METHODS, credentials

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

_OPTIONS = (
    *CHANNEL_OPTIONS,
    # A master that is started again is found at once.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5
# A master that ends cancels the calls that wait.
_TRANSIENT = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
}


class MasterError(DistributedError):
    """The master does not answer, or could not do what was asked."""


class RefusedError(DistributedError, ValueError):
    """The master refuses a call: its token, its version or what it asks for is wrong."""


def address_and_token(
    address: str | None = None, token: str | None = None
) -> tuple[str, str]:
    """Returns where the master is and the token: as given, or from the environment.

    Args:
        address: `host:port`, or several with commas between them; by default
            DRIVETRAIN_ELASTIC_MASTER.
        token: Of the job; by default DRIVETRAIN_ELASTIC_TOKEN.

    Raises:
        ProgramError: One of them is nowhere to be found.
    """
    address = address or os.environ.get("DRIVETRAIN_ELASTIC_MASTER")
    token = token or os.environ.get("DRIVETRAIN_ELASTIC_TOKEN")
    if not address:
        message = (
            "the job's master is not known: give its address (--address), or set "
            "DRIVETRAIN_ELASTIC_MASTER"
        )
        raise ProgramError(message)
    if not token:
        message = (
            "the job's token is not known: give it (--token-file), or set "
            "DRIVETRAIN_ELASTIC_TOKEN"
        )
        raise ProgramError(message)
    return address, check_token(token, "--token-file or DRIVETRAIN_ELASTIC_TOKEN")


class MasterClient:
    """A connection to a master, kept through the master's death; safe in any thread.

    A call that meets no master is repeated until one answers or the time is up. All calls
    of the service may be repeated: what was done already is not done again.

    Args:
        address: `host:port`, or those of all candidates with commas between them. The one
            that has answered last is asked first; a master that only waits for its turn
            does not listen.
        token: Of the job.
        patience_s: How long a call waits for a master.
        tls: Credentials of the channel; by default those of DRIVETRAIN_ELASTIC_TLS_CA,
            or none, where the master is on this machine.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        patience_s: float = 30.0,
        tls: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.address = address
        self._patience_s = patience_s
        self._metadata = credentials(check_token(token, "the argument"))
        tls = tls or channel_credentials()
        self._has_tls = tls is not None
        self._addresses = split_addresses(address)
        self._channels = [_channel(one, tls) for one in self._addresses]
        self._calls = [_calls(channel) for channel in self._channels]
        # Which channel is used; a number that is read and written in one go.
        self._at = 0
        self._is_closed = False

    def call(
        self, name: str, request: Any, *, timeout_s: float = 10.0, wait_s: float = 0.0
    ) -> Any:
        """Makes a call and returns the reply.

        Args:
            name: Of the call.
            request: Its message.
            timeout_s: How long a master may take for the answer.
            wait_s: How much longer the call itself asks it to wait.

        Raises:
            RefusedError: The master refuses the call.
            MasterError: No master has answered in time.
        """
        end_s = time.monotonic() + self._patience_s
        pause_s = _FIRST_WAIT_S
        num_asked = 0
        while True:
            at = self._at
            try:
                return self._calls[at][name](
                    request, timeout=timeout_s + wait_s, metadata=self._metadata
                )
            except grpc.RpcError as error:
                if error.code() not in _TRANSIENT or self._is_closed:
                    raise RefusedError(str(error.details())) from error
                num_asked += 1
                is_over = time.monotonic() + pause_s > end_s
                if is_over and num_asked >= len(self._calls):
                    message = (
                        f"the master at {self.address} has not answered {name} for "
                        f"{self._patience_s:g} s: {error.details()}"
                        f"{self._advice(str(error.details()))}"
                    )
                    raise MasterError(message) from error
            self._at = (at + 1) % len(self._calls)
            if num_asked % len(self._calls) == 0:
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_WAIT_S)

    def stream(
        self, name: str, request: Any, timeout_s: float | None = None
    ) -> Iterator[Any]:
        """Makes a call that answers with a stream, and yields what comes.

        Raises:
            MasterError: No master has answered in time, or the one that did is gone.
        """
        # A stream cannot go on elsewhere: first the one that serves is found.
        self.call("CountKeys", METHODS["CountKeys"].request())
        address = self._addresses[self._at]
        call = self._calls[self._at][name]
        stream = call(request, timeout=timeout_s, metadata=self._metadata)
        try:
            yield from stream
        except grpc.RpcError as error:
            message = f"the master at {address} is gone: {error.details()}"
            raise MasterError(message) from error
        finally:
            stream.cancel()

    def _advice(self, details: str) -> str:
        """Returns what else may be wrong where something listens and hangs up."""
        if self._has_tls or "Socket closed" not in details:
            return ""
        return (
            "; if the master has a certificate, name the file of who vouches for it: "
            "--tls-ca FILE, or DRIVETRAIN_ELASTIC_TLS_CA"
        )

    def close(self) -> None:
        """Ends the connections, and what is under way on them."""
        self._is_closed = True
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _channel(address: str, tls: grpc.ChannelCredentials | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, tls, options=_OPTIONS)


def _calls(channel: grpc.Channel) -> dict[str, Any]:
    """Returns what makes each call of the service on a channel, by name."""
    return {
        name: getattr(channel, method.kind)(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        for name, method in METHODS.items()
    }
