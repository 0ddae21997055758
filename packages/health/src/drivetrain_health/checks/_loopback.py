"""How fast TCP is within a node, by the loopback address and by the node's own."""

from __future__ import annotations

import ipaddress
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from drivetrain_health.checks._task import CheckFailedError, Found

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

_LOOPBACK = "127.0.0.1"
_PARCEL = bytes(range(256)) * 1024
_CONNECT_S = 5.0


def measure(task: Task) -> Found:
    """Sends for a time; returns `loopback_gb_per_s` and `own_address_gb_per_s`.

    The second is left out where the node's name stands for a loopback address.

    Raises:
        CheckFailedError: What was received is not what was sent, or the node does not
            reach itself.
    """
    address = task.address or _own_address()
    rates = {"loopback_gb_per_s": _rate(_LOOPBACK, task.measure_s / 2)}
    if not ipaddress.ip_address(address).is_loopback:
        task.note(f"sending to its own address, {address}")
        rates["own_address_gb_per_s"] = _rate(address, task.measure_s / 2)
    return Found(rates)


def _own_address() -> str:
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        message = (
            f"the name of this node, {name}, stands for no address ({error}), so that "
            "others do not find it: give its address"
        )
        raise CheckFailedError(message) from error


def _rate(address: str, measure_s: float) -> float:
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        message = f"{address} is no address of this node: {error}"
        raise CheckFailedError(message) from error
    with listener:
        listener.settimeout(_CONNECT_S)
        try:
            sender = socket.create_connection(listener.getsockname()[:2], _CONNECT_S)
            receiver, _ = listener.accept()
        except OSError as error:
            message = f"this node does not reach itself by {address}: {error}"
            raise CheckFailedError(message) from error
    # The receiver is closed first, which ends a sender that it no longer listens to.
    with ThreadPoolExecutor(1) as pool, sender, receiver:
        # The limit was for connecting: a busy node is slow, not ill.
        sender.settimeout(None)
        begin_s = time.monotonic()
        sending = pool.submit(_send, sender, measure_s)
        num_parcels = _receive(receiver)
        took_s = time.monotonic() - begin_s
        sending.result()
    return num_parcels * len(_PARCEL) / took_s / 1e9


def _send(sender: socket.socket, measure_s: float) -> None:
    try:
        end_s = time.monotonic() + measure_s
        # The receiver has met a wrong byte, and has gone.
        with suppress(OSError):
            while time.monotonic() < end_s:
                sender.sendall(_PARCEL)
    finally:
        # Whatever ends this thread, such as a lack of memory: the receiver waits for it.
        with suppress(OSError):
            sender.shutdown(socket.SHUT_WR)


def _receive(receiver: socket.socket) -> int:
    """Receives parcels to the end, and returns how many were whole and right."""
    parcel = bytearray(len(_PARCEL))
    num_parcels = 0
    while True:
        size = receiver.recv_into(parcel, flags=socket.MSG_WAITALL)
        is_whole = size == len(_PARCEL)
        if parcel != _PARCEL if is_whole else parcel[:size] != _PARCEL[:size]:
            message = f"parcel {num_parcels} is not what was sent"
            raise CheckFailedError(message)
        if not is_whole:
            return num_parcels
        num_parcels += 1
