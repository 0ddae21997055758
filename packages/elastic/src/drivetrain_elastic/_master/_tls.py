"""Certificates, read from files."""

from __future__ import annotations

from pathlib import Path

import grpc

from drivetrain_core import ProgramError

__all__ = ["server_credentials"]


def server_credentials(
    certificate: str | None, key: str | None
) -> grpc.ServerCredentials | None:
    """Returns what a server proves itself with, or None if no files are named.

    Args:
        certificate: The file of the certificate and those above it, PEM.
        key: The file of its key, PEM.

    Raises:
        ProgramError: Only one is named, or they cannot be read.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        message = "TLS needs both a certificate and its key, got one of them"
        raise ProgramError(message)
    try:
        pair = Path(key).read_bytes(), Path(certificate).read_bytes()
    except OSError as error:
        message = f"TLS: {error}"
        raise ProgramError(message) from error
    return grpc.ssl_server_credentials([pair])
