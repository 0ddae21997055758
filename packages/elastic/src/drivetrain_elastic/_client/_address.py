"""Addresses of masters: how they are written, and whether a server can listen there."""

from __future__ import annotations

import errno
import re
import socket

from drivetrain_core import ProgramError

_ADDRESS = re.compile(r"([^\s:]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


def is_loopback(address: str) -> bool:
    """Returns whether only this machine can reach an address.

    Example:
        >>> [is_loopback(a) for a in ("127.0.0.1:0", "localhost:5", "[::1]:5", "0.0.0.0:5")]
        [True, True, True, False]
    """
    host = address.rsplit(":", 1)[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith(("127.", "unix"))


def stays_here(addresses: str) -> bool:
    """Returns whether all that can reach a master runs on this machine.

    Args:
        addresses: Of the master; of several candidates, with commas.

    Example:
        >>> stays_here("127.0.0.1:29400"), stays_here("127.0.0.1:29400,a.example:29400")
        (True, False)
    """
    return all(is_loopback(one.strip()) for one in addresses.split(","))


def is_free(address: str) -> bool:
    """Returns whether nobody listens on a port of this machine.

    Raises:
        OSError: The address is not this machine's, or may not be had.
        ProgramError: It is no address.
    """
    host, port = split_address(address)
    error: OSError | None = None
    # A name may stand for addresses of which a machine has some.
    has_one = False
    for family, kind, protocol, _, place in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as found:
            if found.errno == errno.EADDRINUSE:
                return False
            error = found
        else:
            has_one = True
    if error is not None and not has_one:
        raise error
    return True


def free_port() -> int:
    """Returns a port of this machine that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def check_host(address: str) -> None:
    """Finds out whether a server may listen on a host, on some port.

    Args:
        address: `host:port`.

    Raises:
        ProgramError: It may not.
    """
    host = address.rpartition(":")[0]
    split_address(address)
    try:
        is_free(f"{host}:0")
    except OSError as error:
        message = (
            f"the master cannot listen at {address}, which must be an address of this "
            f"machine: {error}"
        )
        raise ProgramError(message) from error


def check_port(address: str) -> None:
    """Finds out whether a server could listen now.

    Args:
        address: `host:port`; port 0 is always free.

    Raises:
        ProgramError: It could not.
    """
    try:
        if is_free(address):
            return
        why = "something else listens there"
    except OSError as error:
        why = str(error)
    message = f"the master cannot listen at {address}: {why}; give it another --address"
    raise ProgramError(message)


def split_address(address: str) -> tuple[str, int]:
    """Returns the host and the port of an address.

    Raises:
        ProgramError: It is no address.

    Example:
        >>> split_address("[::1]:29400")
        ('::1', 29400)
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[2]) > 65_535:
        message = f"an address is HOST:PORT with a port to 65535, got {address!r}"
        raise ProgramError(message)
    return match[1].strip("[]"), int(match[2])


def split_addresses(addresses: str) -> list[str]:
    """Returns the addresses of masters in a text.

    Raises:
        ProgramError: There is none, or one without a host or a port.

    Example:
        >>> split_addresses("a.example:29400, [::1]:29400")
        ['a.example:29400', '[::1]:29400']
    """
    found = [one.strip() for one in addresses.split(",")]
    try:
        for one in found:
            split_address(one)
    except ProgramError:
        message = (
            "the address of a master is HOST:PORT with a port to 65535, or several with "
            f"commas between them, got {addresses!r}"
        )
        raise ProgramError(message) from None
    return found
