"""Measures NCCL's algorithms and protocols by size; makes the input of a table.

    torchrun --nproc-per-node 8 nccl_sweep.py --out results.csv
    drivetrain comm tune --nccl results.csv --out table

Run it on all nodes that a job will have, with nothing else on them. NCCL reads its
settings once in a process, so that every setting is measured by processes of its own,
one after the other: the program that torchrun starts only starts those, and stops them
where one fails. What NCCL cannot do here is left out, and said.

NCCL_PROTO=LL128 makes NCCL use LL128 also where it would not dare to. A rule that comes of
that does nothing: the plug-in never forces what NCCL has ruled out.

All settings are measured in turns, `--passes` times, so that a drift of the machine
touches all of them. A time is that of the slowest rank. `--minutes 2` ends it in time for a
job that waits; fewer sizes and collectives make more of two minutes.
"""

import argparse
import csv
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from drivetrain_comm._cli.common import sizes as parse_sizes
from drivetrain_comm.nccl import COLLECTIVES, Measurement
from drivetrain_comm.nccl._rule import channels_refusal
from drivetrain_core import DistributedError

_WARM_UP = 5
_NAMES = {
    "tree": "Tree",
    "ring": "Ring",
    "collnet_direct": "CollnetDirect",
    "collnet_chain": "CollnetChain",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "pat": "PAT",
    "ll": "LL",
    "ll128": "LL128",
    "simple": "Simple",
}
_ALL = ("ll", "ll128", "simple")
_ONE = ("simple",)
# What NCCL has at all; what it can do on a machine is seen when it is tried.
_CHOICES = {
    "all_reduce": {
        "ring": _ALL,
        "tree": _ALL,
        "nvls": _ONE,
        "nvls_tree": _ONE,
        "collnet_direct": _ONE,
        "collnet_chain": _ONE,
    },
    "all_gather": {"ring": _ALL, "pat": _ONE, "nvls": _ONE, "collnet_direct": _ONE},
    "reduce_scatter": {"ring": _ALL, "pat": _ONE, "nvls": _ONE, "collnet_direct": _ONE},
    "broadcast": {"ring": _ALL},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One collective with one choice; None where NCCL chooses."""

    collective: str
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None

    def environment(self):
        """Returns the variables that make NCCL use it."""
        found = {}
        if self.algorithm is not None:
            found |= {
                "NCCL_ALGO": _NAMES[self.algorithm],
                "NCCL_PROTO": _NAMES[self.protocol],
            }
        if self.channels is not None:
            found |= dict.fromkeys(
                ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), str(self.channels)
            )
        return found

    def __str__(self):
        choice = f"{self.algorithm} {self.protocol}" if self.algorithm else "default"
        channels = f", {self.channels} channels" if self.channels else ""
        return f"{self.collective} {choice}{channels}"


def settings_of(collectives, channels, nodes):
    """Returns what is measured: first NCCL's own choice, then each of ours."""
    found = []
    for collective in collectives:
        found.append(Setting(collective=collective))
        for algorithm, protocols in _CHOICES[collective].items():
            numbers = [] if channels_refusal(algorithm, nodes) else channels
            for protocol in protocols:
                for number in (None, *numbers):
                    found.append(
                        Setting(
                            collective=collective,
                            algorithm=algorithm,
                            protocol=protocol,
                            channels=number,
                        )
                    )
    return found


def environment_for(setting, environment):
    """Returns a process's environment with one setting, and no other of NCCL's choice."""
    ours = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS")
    ours += ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_TUNER_PLUGIN")
    rest = {name: value for name, value in environment.items() if name not in ours}
    # A tuner that lies on the loader's path would otherwise be used.
    return {**rest, "NCCL_TUNER_PLUGIN": "none", **setting.environment()}


def start_of(collective, size_bytes, device):
    """Returns a function that starts a collective of a whole of about a size, and it.

    The size is rounded down to a multiple of what ranks share evenly.
    """
    world_size = dist.get_world_size()
    per_rank = max(size_bytes // (4 * world_size), 1)
    count = size_bytes // 4
    if collective in {"all_gather", "reduce_scatter"}:
        count = per_rank * world_size
    whole = torch.ones(count, device=device)
    part = torch.ones(per_rank, device=device)
    # Their names before torch 2.13 come second.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    starts = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: gather(whole, part),
        "reduce_scatter": lambda: scatter(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    return starts[collective], 4 * count


def time_us(start, num_calls, device):
    """Returns the time of one call, out of several in a row, on the slowest rank."""
    for _ in range(_WARM_UP):
        start()
    slowest(0.0)
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(num_calls):
            start()
        end.record()
        end.synchronize()
        seconds = begin.elapsed_time(end) * 1e-3
    else:
        began = time.perf_counter()
        for _ in range(num_calls):
            start()
        seconds = time.perf_counter() - began
    return slowest(seconds) / num_calls * 1e6


def slowest(seconds):
    """Returns the most of all ranks; over Gloo, since NCCL may know one collective only."""
    most = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.item()


def measure(setting, sizes, nodes, device):
    """Measures a setting in this process, one of all ranks'; rank 0 prints rows."""
    for size_bytes in sizes:
        start, whole_bytes = start_of(setting.collective, size_bytes, device)
        num_calls = 200 if size_bytes <= 1 << 20 else 20
        times = [time_us(start, num_calls, device) for _ in range(3)]
        if dist.get_rank() == 0:
            row = Measurement(
                **asdict(setting),
                ranks=dist.get_world_size(),
                nodes=nodes,
                size_bytes=whole_bytes,
                time_us=statistics.median(times),
            )
            print(json.dumps(asdict(row)), flush=True)


def worker(arguments, *, backend="cpu:gloo,cuda:nccl", device=None):
    """Joins the ranks that measure one setting, and measures it."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device is None:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    store = dist.PrefixStore(f"nccl-sweep/{arguments.worker}", agents_store())
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=arguments.timeout),
    )
    setting = Setting(**json.loads(arguments.setting))
    measure(setting, parse_sizes(arguments.sizes), num_nodes(), device)
    slowest(0.0)
    dist.destroy_process_group()


def num_nodes():
    """Returns on how many nodes the ranks are, as many on each."""
    return int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])


def agents_store():
    """Returns the store of torchrun, which outlives all processes of the sweep."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        message = (
            "start it by torchrun, as in torchrun --nproc-per-node 8 nccl_sweep.py"
        )
        raise DistributedError(message)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False)


def run_setting(command, environment, store, key, timeout_s):
    """Runs this rank's process of a setting.

    Returns what it printed, or None if a process of some rank failed; that one's absence
    would hang the others', which are stopped.
    """
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, env=environment, stdout=out)
        try:
            while process.poll() is None:
                is_late = time.monotonic() > deadline
                if is_late or store.check([f"{key}/failed"]):
                    process.kill()
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            store.set(f"{key}/failed", str(process.returncode))
        out.seek(0)
        text = out.read()
    # Nobody starts the next setting while some process of this one still runs.
    meet(store, f"{key}/ended", timeout_s)
    return None if store.check([f"{key}/failed"]) else text


def meet(store, key, timeout_s):
    """Returns when all ranks have come."""
    if store.add(f"{key}/count", 1) == int(os.environ["WORLD_SIZE"]):
        store.set(key, "all")
    store.wait([key], timedelta(seconds=timeout_s + 60))


def sweep(arguments, command=None):
    """Measures all settings, and writes the file on rank 0."""
    store, rank = agents_store(), int(os.environ["RANK"])
    # What torchrun ends takes its own process along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    settings = settings_of(arguments.collectives, arguments.channels, num_nodes())
    skipped = set()
    deadline = time.monotonic() + 60 * (arguments.minutes or math.inf)
    # Where a row was read is no part of what is measured.
    columns = [field.name for field in fields(Measurement) if field.name != "where"]
    # The file is there after the first setting, and grows: a sweep that is cut off
    # leaves what it has found.
    out = Path(arguments.out) if rank == 0 else Path(os.devnull)
    with out.open("w", newline="") as file:
        rows = csv.DictWriter(file, columns, restval="default")
        rows.writeheader()
        for turn in range(arguments.passes):
            for at, setting in enumerate(settings):
                if at in skipped:
                    continue
                key = f"{turn}-{at}"
                if rank == 0:
                    is_over = time.monotonic() > deadline
                    store.set(f"nccl-sweep/{key}/goes-on", str(not is_over))
                if store.get(f"nccl-sweep/{key}/goes-on") != b"True":
                    return
                text = run_setting(
                    [
                        *(command or [sys.executable, __file__]),
                        *("--worker", key, "--setting", json.dumps(asdict(setting))),
                        *("--sizes", arguments.sizes),
                        *("--timeout", str(arguments.timeout)),
                    ],
                    environment_for(setting, os.environ),
                    store,
                    f"nccl-sweep/{key}",
                    arguments.timeout,
                )
                if text is None:
                    skipped.add(at)
                    if rank == 0:
                        print(f"{setting}: not here", file=sys.stderr)
                    continue
                for line in text.splitlines():
                    row = json.loads(line)
                    given = {n: row[n] for n in columns if row[n] is not None}
                    rows.writerow(given)
                file.flush()
                if rank == 0:
                    print(f"pass {turn + 1}: {setting}", file=sys.stderr)


def parse(argv=None):
    """Returns the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", help="the CSV file")
    parser.add_argument(
        "--collectives",
        type=lambda text: text.split(","),
        default=list(_CHOICES),
        help="with commas between them; by default all",
    )
    parser.add_argument(
        "--channels",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[],
        help="numbers of channels to try as well, such as 4,8,16",
    )
    parser.add_argument(
        "--sizes",
        default="1K,4K,16K,64K,256K,1M,4M,16M,64M,256M",
        help="of the whole (default: %(default)s)",
    )
    parser.add_argument("--passes", type=int, default=5, help="default: 5")
    parser.add_argument(
        "--minutes", type=float, help="when to end; what is not measured stays NCCL's"
    )
    parser.add_argument(
        "--timeout", type=float, default=180, help="seconds for a setting (180)"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    unknown = set(arguments.collectives) - set(_CHOICES)
    if unknown:
        parser.error(f"--collectives must be of {', '.join(_CHOICES)}, got {unknown}")
    if arguments.worker is None and arguments.out is None:
        parser.error("--out is needed")
    return arguments


def main(argv=None):
    """Runs the sweep, or one process of it."""
    arguments = parse(argv)
    if not torch.cuda.is_available():
        sys.exit("nccl_sweep: NCCL needs CUDA GPUs, and torch finds none here")
    try:
        worker(arguments) if arguments.worker is not None else sweep(arguments)
    except DistributedError as error:
        sys.exit(f"nccl_sweep: {error}")


if __name__ == "__main__":
    assert set(_CHOICES) <= set(COLLECTIVES)
    main()
