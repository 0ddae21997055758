"""TLS credentials of servers and clients, read from files."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import grpc

from drivetrain_core import ProgramError
from drivetrain_core.commands import reason_of


def server_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Returns what a server proves itself with, or None if no files are named.

    Args:
        certificate: The file of the certificate and those above it, PEM.
        key: The file of its key, PEM.

    Raises:
        ProgramError: Only one is named, they cannot be read, or are not of each other.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        message = "TLS needs both a certificate and its key, got one of them"
        raise ProgramError(message)
    for path in (key, certificate):
        _read(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(certificate, key, password=str)
    except (ssl.SSLError, ValueError) as error:
        message = (
            f"TLS: {certificate} must be a certificate in PEM and {key} its key, without "
            f"a password: {error}"
        )
        raise ProgramError(message) from error
    return context


def channel_credentials(authority: str | None = None) -> grpc.ChannelCredentials | None:
    """Returns what a client checks the master with, or None if it does not.

    Args:
        authority: The file of the certificate that vouches for the master's, PEM; by
            default DRIVETRAIN_ELASTIC_TLS_CA.

    Raises:
        ProgramError: It cannot be read.
    """
    authority = authority or os.environ.get("DRIVETRAIN_ELASTIC_TLS_CA")
    if not authority:
        return None
    return grpc.ssl_channel_credentials(_read(authority))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        message = f"TLS: {path}: {reason_of(error)}"
        raise ProgramError(message) from error
