"""How fast a node's RDMA devices reach its memory, its GPUs and each other.

`ib_write_bw` measures it: from each device to the memory of each NUMA node and of each GPU
and back into the same device, and between all pairs of devices, in rounds in which no end
is used twice.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shlex
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from drivetrain_health.checks._gpu_all_to_all import nccl_test
from drivetrain_health.checks._task import (
    CheckFailedError,
    Found,
    NotHereError,
    Said,
    end,
    listens,
    said_by,
    start,
)
from drivetrain_health.decisions.device_paths import (
    DevicePath,
    describe_slow,
    rounds_of,
    slow_paths,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_fabric.topology import Topology
    from drivetrain_health.checks._task import Task

_TOOL = "ib_write_bw"
# The tool's own default is 5,000, 7 ms of a link of 400 Gbit/s.
_ITERATIONS = 20_000
# Bytes, which are as many by default, iterations, the peak, the average, and more numbers.
_RATE = re.compile(r"(?m)^ *65536 +\d+ +[\d.]+ +(?!0*\.?0* )(\d+\.?\d*)( +[\d.]+)+\s*$")
# Each end begins with a second of sleep.
_PATH_S = 20.0
# What the newest ones offer, for a plan of what is not run here.
_NEWEST = "--numa_node --use_cuda_bus_id"
_FIRST_PORT = 18515


def measure(task: Task) -> Found:
    """Returns a rate for each way, such as `rdma_mlx5_0:1_gpu3_gbit_per_s`.

    A way that is slow is measured once more, alone.

    Raises:
        NotHereError: The tool, a library of it, the topology of the node, or an active
            device is missing.
        CheckFailedError: A way is slow beside those that are as far, the tool fails, or it
            does not answer in time.
    """
    tool = shutil.which(_TOOL)
    if tool is None:
        message = f"there is no {_TOOL}, which the package perftest has"
        raise NotHereError(message)
    offered = _offered_by(tool, task.limit_s)
    topology = read_host()
    rounds = rounds_of(paths_of(topology, offered))
    if not rounds:
        message = "there is no RDMA device with an active port"
        raise NotHereError(message)

    def rate(path: DevicePath) -> float:
        return _rate(path, commands_of(path, topology, offered, _free_port()), limit_s)

    limit_s = min(_PATH_S, task.limit_s)
    rates: dict[DevicePath, float] = {}
    for one in rounds:
        task.note(f"sending from {', '.join(map(str, one))}")
        with ThreadPoolExecutor(len(one)) as pool:
            rates.update(zip(one, pool.map(rate, one), strict=True))
    for path in slow_paths(rates):
        task.note(f"sending from {path} alone")
        rates[path] = max(rates[path], rate(path))
    if slow := slow_paths(rates):
        raise CheckFailedError(describe_slow(rates, slow))
    return Found(
        {f"rdma_{p.device}_{p.target}_gbit_per_s": r for p, r in rates.items()}
    )


def plan_commands(sysfs: str = "/sys", offered: str | None = None) -> list[str]:
    """Returns the commands of the tools, as lines for a shell; nothing is run.

    Those of a round run at once; of each two, the first one receives.

    Args:
        sysfs: Of the host that they are for: this one's, or what was recorded of another.
        offered: What its `ib_write_bw --help` says; by default this host's, or what the
            newest ones offer.

    Raises:
        NotHereError: What reads the topology is not installed, or the tool does not run.
    """
    if offered is None:
        tool = shutil.which(_TOOL)
        offered = _offered_by(tool, _PATH_S) if tool else _NEWEST
    topology = read_host(sysfs)
    lines = []
    for number, one in enumerate(rounds_of(paths_of(topology, offered)), start=1):
        for port, path in enumerate(one, _FIRST_PORT):
            server, client = commands_of(path, topology, offered, port)
            lines.append(f"# round {number}: {path}")
            lines += [f"{shlex.join(server)} &", shlex.join(client)]
    if len(topology.gpus) > 1:
        lines += ["# between all GPUs", shlex.join(nccl_test(len(topology.gpus)))]
    return lines


def read_host(sysfs: str = "/sys") -> Topology:
    """Returns what this host is made of, or one whose /sys was recorded.

    Args:
        sysfs: Where it is.

    Raises:
        NotHereError: What reads it is not installed.
    """
    try:
        from drivetrain_fabric.topology import read_topology
    except ImportError as error:
        message = (
            "it takes the host's topology: pip install drivetrain-health[topology]"
        )
        raise NotHereError(message) from error
    return read_topology(sysfs, use_nvml=sysfs == "/sys")


def paths_of(topology: Topology, offered: str) -> list[DevicePath]:
    """Returns all ways that the tool can measure.

    Args:
        topology: Of the host.
        offered: What the tool says of its options.
    """
    from drivetrain_fabric.topology import distance

    cards = {
        f"{nic.rdma.device}:{nic.rdma.port}": nic
        for nic in topology.nics
        if nic.rdma is not None and nic.rdma.state == "ACTIVE"
    }
    can_bind = "--numa_node" in offered or shutil.which("numactl")
    found = []
    for device, nic in cards.items():
        near = nic.slot.numa_node if nic.slot else None
        if len(topology.numa_nodes) == 1:
            near = topology.numa_nodes[0].index
        for node in topology.numa_nodes if can_bind else ():
            if node.cpus and node.memory_bytes != 0:
                far = "near" if node.index == near else "SYS"
                found.append(DevicePath(device, f"numa{node.index}", far))
        for gpu in topology.gpus if "--use_cuda" in offered else ():
            far = distance(topology, nic.name, gpu.label)
            found.append(DevicePath(device, gpu.label, far))
    for (one, a), (other, b) in itertools.combinations(cards.items(), 2):
        found.append(DevicePath(one, other, distance(topology, a.name, b.name)))
    return found


def commands_of(
    path: DevicePath, topology: Topology, offered: str, port: int
) -> tuple[list[str], list[str]]:
    """Returns the command that receives, to be started first, and the one that sends.

    Args:
        path: The way.
        topology: Of the host.
        offered: What the tool says of its options.
        port: At which the two meet.
    """
    common = [_TOOL, "-F", "--report_gbits", "-n", str(_ITERATIONS), "-p", str(port)]
    gpus = {gpu.label: gpu for gpu in topology.gpus}
    receiver = path.device
    if gpu := gpus.get(path.target):
        by_bus = "--use_cuda_bus_id" in offered
        where = f"_bus_id={gpu.slot.address}" if by_bus else f"={gpu.index}"
        common.append(f"--use_cuda{where}")
    elif path.target.startswith("numa"):
        node = path.target.removeprefix("numa")
        # Newer ones bind themselves to the device's node, whatever has bound them.
        if "--numa_node" in offered:
            common.append(f"--numa_node={node}")
        else:
            common = ["numactl", f"--cpunodebind={node}", f"--membind={node}", *common]
    else:
        receiver = path.target
        common.append("-b")
    ends = (receiver.split(":"), path.device.split(":"))
    server, client = ([*common, "-d", device, "-i", number] for device, number in ends)
    return server, [*client, "127.0.0.1"]


def rate_of(said: str) -> float | None:
    r"""Returns the average rate in what the tool says, in Gbit/s; None if there is none.

    Args:
        said: Its output, in which any other line may hold numbers.

    Example:
        >>> rate_of(" #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n"
        ...         " 65536 5000 197.51 197.48 0.376663")
        197.48
    """
    found = _RATE.search(said)
    return None if found is None else float(found[1])


def _offered_by(tool: str, limit_s: float) -> str:
    """Returns what the tool says of its options, after which it need not end with 0."""
    said = said_by([tool, "--help"], limit_s)
    if "--" not in said.text:
        message = f"{tool} --help names no option: {said.last_line}"
        raise NotHereError(message)
    return said.text


def _rate(
    path: DevicePath, commands: tuple[Sequence[str], Sequence[str]], limit_s: float
) -> float:
    """Returns the rate of a way, and how the tool failed as an error that names the way."""
    end_s = time.monotonic() + limit_s
    what, said = f"{path}: {_TOOL}", Said("")
    server = start(commands[0])
    try:
        # What it says comes at its end only, from a buffer.
        while not listens(server) and server.poll() is None:
            if time.monotonic() > end_s:
                message = f"{path}: the receiving {_TOOL} does not listen"
                raise CheckFailedError(message)
            time.sleep(0.1)
        if server.poll() is None:
            said = said_by(commands[1], max(0.1, end_s - time.monotonic()), str(path))
    finally:
        heard = Said(exit_code=server.poll() or 0, text=end(server))
    said.refuse_failure(what)
    heard.refuse_failure(f"{path}: the receiving {_TOOL}")
    rate = rate_of(said.text)
    if rate is None:
        last = (said if said.text else heard).last_line
        message = f"{what} has said no rate above 0: {last}"
        raise CheckFailedError(message)
    return rate


def _free_port() -> int:
    """Returns a port from below those that Linux gives to connections, which come and go."""
    while True:
        port = random.randrange(_FIRST_PORT, _FIRST_PORT + 10_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("", port))
            return port
