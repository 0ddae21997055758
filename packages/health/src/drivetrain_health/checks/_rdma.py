"""How fast RDMA is from one device of a node to another, as `ib_write_bw` measures it."""

from __future__ import annotations

import math
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_health.checks._nic import read_ports
from drivetrain_health.checks._task import CheckFailedError, Found, NotHereError

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

_TOOL = "ib_write_bw"
_DEVICES = Path("/sys/class/infiniband")


def measure(task: Task) -> Found:
    """Returns `rdma_gbit_per_s`, and `rdma_gpu_gbit_per_s` where the tool knows GPUs.

    Raises:
        NotHereError: The tool is missing, or two active devices are.
        CheckFailedError: The tool fails, or says nothing that can be read.
    """
    tool = shutil.which(_TOOL)
    if tool is None:
        message = f"there is no {_TOOL}, which the package perftest has"
        raise NotHereError(message)
    active = [p.device for p in read_ports(_DEVICES) if p.state == "ACTIVE"]
    devices = list(dict.fromkeys(active))
    if len(devices) < 2:
        message = f"it takes two active RDMA devices, there are {len(devices)}"
        raise NotHereError(message)
    task.note(f"sending from {devices[1]} to {devices[0]}")
    rates = {"rdma_gbit_per_s": _rate(tool, devices, [], task)}
    if "--use_cuda" in _said([tool, "--help"], task.limit_s):
        task.note(f"sending from {devices[1]} to {devices[0]}, in a GPU's memory")
        rates["rdma_gpu_gbit_per_s"] = _rate(tool, devices, ["--use_cuda=0"], task)
    return Found(rates)


def rate_of(said: str) -> float | None:
    r"""Returns the average rate in what the tool says, in Gbit/s; None if there is none.

    Args:
        said: Its output.

    Example:
        >>> rate_of(" #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n"
        ...         " 65536 5000 197.51 197.48 0.376663")
        197.48
    """
    for line in said.splitlines():
        fields = re.findall(r"\S+", line)
        if len(fields) >= 4 and fields[0].isdecimal() and fields[1].isdecimal():
            try:
                rate = float(fields[3])
            except ValueError:
                continue
            if math.isfinite(rate):
                return rate
    return None


def _rate(tool: str, devices: list[str], options: list[str], task: Task) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    duration = ["-D", str(max(1, round(task.measure_s)))]
    common = [tool, "-F", "-p", str(port), "--report_gbits", *duration, *options]
    with subprocess.Popen(
        [*common, "-d", devices[0]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as server:
        assert server.stdout is not None
        try:
            heard = []
            for line in server.stdout:
                heard.append(line)
                if "waiting for client" in line.lower():
                    break
            else:
                raise _no_rate(tool, "".join(heard))
            said = _said([*common, "-d", devices[1], "127.0.0.1"], task.limit_s)
        finally:
            server.kill()
    rate = rate_of(said)
    if rate is None:
        raise _no_rate(tool, said)
    return rate


def _no_rate(tool: str, said: str) -> CheckFailedError:
    lines = said.strip().splitlines()
    return CheckFailedError(
        f"{tool} has said no rate: {lines[-1] if lines else 'nothing at all'}"
    )


def _said(command: list[str], limit_s: float) -> str:
    """Returns the output of a command."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{command[0]}: {error}"
        raise CheckFailedError(message) from error
