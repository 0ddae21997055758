"""Strangers at a master's port: what they cost it, and how long its owner waits meanwhile.

`python strangers.py HOST PORT CONNECTIONS REQUESTS` is the attack; the bar runs two at a time.
"""

import contextlib
import dataclasses
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.protocol import messages as pb
from drivetrain_testing import Row

_MOST_MIB, _MOST_S = 32, 1.0
_ATTACKERS = 2
_HELD = 2_000
_BATCH = 200
_PAUSE_S = 0.05
# Who sends what is not read has soon sent it all.
_LEAST_S = 5.0

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = bytes(3) + b"\x04" + bytes(5)
_ACKNOWLEDGED = bytes(3) + b"\x04\x01" + bytes(4)
_PATHS = ("SetKey", "GetStatus", "Attend", "WatchEvents", "Nothing", "../x")


def strangers(quick):
    """Silent and hostile connections, and then requests without a token."""
    connections, requests = (1_000, 20_000) if quick else (10_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "drivetrain_elastic.cli", "master"]
        command += ["--journal", f"{folder}/job.db", "--token-file", f"{folder}/token"]
        with (
            Path(folder, "stderr").open("w+") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as master,
        ):
            try:
                address = master.stdout.readline().split()[-1]
                token = Path(folder, "token").read_text()
                row = measure(master.pid, address, token, connections, requests)
            finally:
                master.terminate()
            said = Path(folder, "stderr").read_text()
            details = {**row.details, "said": said[:4_000]}
            return dataclasses.replace(
                row, holds=row.holds and not said, details=details
            )


def measure(pid, address, token, connections, requests):
    process = psutil.Process(pid)
    end = threading.Event()
    waits, errors = {"kept": [], "new": []}, []
    most = [0]

    def ask(client):
        client.call("GetStatus", pb.StatusRequest(), timeout_s=30.0)

    def new_client():
        return MasterClient(address, token, patience_s=30.0)

    def keep(kind, prepare):
        while not end.is_set():
            began_s = time.monotonic()
            try:
                prepare()
            except Exception as error:  # noqa: BLE001 - it is what is measured
                errors.append(repr(error))
            waits[kind].append(time.monotonic() - began_s)
            most[0] = max(most[0], process.memory_info().rss)
            time.sleep(_PAUSE_S)

    def ask_anew():
        with new_client() as client:
            ask(client)

    with new_client() as client:
        # What the first calls take stays with the master in any case.
        for _ in range(200):
            ask(client)
            ask_anew()
        before = process.memory_info().rss
        owners = [
            threading.Thread(target=keep, args=("kept", lambda: ask(client))),
            threading.Thread(target=keep, args=("new", ask_anew)),
        ]
        for owner in owners:
            owner.start()
        began_s = time.monotonic()
        host, port = address.rsplit(":", 1)
        sent = attack(host, port, connections, requests)
        took_s = time.monotonic() - began_s
        end.set()
        for owner in owners:
            owner.join()
    grown = (most[0] - before) / 2**20
    worst = max(max(found) for found in waits.values())
    p99 = [sorted(found)[int(len(found) * 0.99)] for found in waits.values()]
    return Row(
        figure=f"{sent['connections']:,} connections and {sent['requests']:,} requests in "
        f"{took_s:.0f} s: {grown:.0f} MiB more; the owner waits {worst:.2f} s at most (p99 "
        f"{p99[0]:.2f} s on a kept connection, {p99[1]:.2f} s on a new one), "
        f"{len(errors)} of {sum(map(len, waits.values()))} calls failed",
        holds=grown <= _MOST_MIB and worst <= _MOST_S and not errors,
        details={"errors": errors[:10]},
    )


def attack(host, port, connections, requests):
    """Runs the attackers; returns what they have sent."""
    shares = [str(connections // _ATTACKERS), str(requests // _ATTACKERS)]
    command = [sys.executable, __file__, host, port, *shares]
    running = [
        subprocess.Popen([*command, str(at)], stdout=subprocess.PIPE, text=True)
        for at in range(_ATTACKERS)
    ]
    sent = {"connections": 0, "requests": 0}
    for one in running:
        text, _ = one.communicate()
        for name, number in zip(sent, text.split(), strict=True):
            sent[name] += int(number)
    return sent


def main(host, port, connections, requests, seed):
    dice = random.Random(int(seed))
    place = host, int(port)
    made = open_many(dice, place, int(connections))
    print(made, send_many(dice, place, int(requests)))


def open_many(dice, place, connections):
    """Opens connections that say nothing, or nothing good; as many as may be are held."""
    held, made, end_s = [], 0, time.monotonic() + _LEAST_S
    while made < connections or time.monotonic() < end_s:
        kinds = (
            b"",
            dice.randbytes(dice.randrange(1, 2_000)),
            _PREFACE,
            _PREFACE + _SETTINGS,
            _PREFACE[:10],
            _PREFACE + _SETTINGS + _ACKNOWLEDGED + header(1, "SetKey"),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01",
            _PREFACE + _SETTINGS + header(1, "SetKey")[:20],
            _PREFACE
            + _SETTINGS
            + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"
            + bytes(4_000),
        )
        sock = socket.socket()
        sock.settimeout(10.0)
        with contextlib.suppress(OSError):
            sock.connect(place)
            made += 1
            sock.sendall(kinds[dice.randrange(len(kinds))])
        held.append(sock)
        if len(held) > _HELD:
            held.pop(dice.randrange(len(held))).close()
    for sock in held:
        sock.close()
    return made


def header(stream, path):
    """Returns the frame of a request without a token."""
    fields = b"\x83\x86"
    for index, text in (
        (b"\x04", f"/drivetrain.elastic.v1.Master/{path}"),
        (b"\x01", "x"),
    ):
        fields += index + bytes([len(text)]) + text.encode()
    fields += b"\x0f\x10\x10application/grpc" + b"\x00\x02te\x08trailers"
    length = len(fields).to_bytes(3, "big")
    return length + b"\x01\x04" + stream.to_bytes(4, "big") + fields


def send_many(dice, place, requests):
    """Sends requests, many on a connection, on a new one as soon as that is closed."""
    num, number, sock, end_s = 0, 1, None, time.monotonic() + _LEAST_S
    while num < requests or time.monotonic() < end_s:
        if sock is None:
            sock, number = socket.socket(), 1
            sock.settimeout(10.0)
            with contextlib.suppress(OSError):
                sock.connect(place)
                sock.sendall(_PREFACE + _SETTINGS + _ACKNOWLEDGED)
        batch = b""
        for _ in range(_BATCH):
            body = (
                b"\x00"
                + dice.randrange(1 << 10).to_bytes(4, "big")
                + dice.randbytes(30)
            )
            frame = (
                len(body).to_bytes(3, "big") + b"\x00\x01" + number.to_bytes(4, "big")
            )
            batch += header(number, dice.choice(_PATHS)) + frame + body
            number += 2
        try:
            sock.sendall(batch)
            num += _BATCH
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    if not sock.recv(1 << 16):
                        raise ConnectionResetError
            sock.settimeout(10.0)
        except OSError:
            sock.close()
            sock = None
    if sock is not None:
        sock.close()
    return num


if __name__ == "__main__":
    main(*sys.argv[1:])
