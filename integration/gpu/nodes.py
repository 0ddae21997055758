"""Steps of DDP on 1, 2, 4, ... hosts: stock and tuned, in turns.

torchrun starts it on every host, or `run.py --nodes N --meet HOST:PORT` does. Rank 0 prints
a line for each number of hosts: the median step of stock DDP and of DDP that tunes its
buckets, their ratio, and how near either comes to N times the throughput of one host. The
ranks beyond the hosts of a line wait.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import drivetrain_comm

# Of the tuned ones, the first this many search.
_SEARCH_STEPS = 30
_WARM_UP = 3


def hosts_of_lines(num_hosts: int) -> list[int]:
    """Returns the numbers of hosts that are measured: powers of two, and all.

    Example:
        >>> hosts_of_lines(6)
        [1, 2, 4, 6]
    """
    return [*(1 << i for i in range(num_hosts.bit_length()) if 1 << i < num_hosts),
            num_hosts]  # fmt: skip


def make_model(width: int, num_layers: int) -> torch.nn.Module:
    """Returns a stack of layers, alike on all ranks."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(num_layers)]
    return torch.nn.Sequential(*layers)


class Training:
    """One DDP module over a group of its own.

    Args:
        ranks: Of the group; every rank of the job makes it.
        device: Of this rank.
        arguments: The command line's.
        is_tuned: Whether the package has a hand in it.
    """

    def __init__(
        self,
        ranks: list[int],
        device: torch.device,
        arguments: argparse.Namespace,
        *,
        is_tuned: bool,
    ) -> None:
        switch = drivetrain_comm.enable if is_tuned else drivetrain_comm.disable
        switch()
        group = dist.new_group(ranks)
        self._is_left_out = dist.get_rank() not in ranks
        if self._is_left_out:
            return
        model = make_model(arguments.width, arguments.layers).to(device)
        ids = None if device.type == "cpu" else [device.index]
        self._ddp = DistributedDataParallel(model, device_ids=ids, process_group=group)
        self._x = torch.randn(arguments.batch, arguments.width, device=device)
        self._device = device

    def steps(self, number: int) -> list[float]:
        """Returns the seconds of steps; empty where this rank has no part."""
        times: list[float] = []
        for _ in range(0 if self._is_left_out else number):
            began = time.perf_counter()
            self._ddp(self._x).square().mean().backward()
            if self._device.type != "cpu":
                torch.accelerator.synchronize()
            times.append(time.perf_counter() - began)
        return times


def measure(
    ranks: list[int], device: torch.device, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Returns the median step of stock DDP and of tuned DDP, in turns; 0 if left out."""
    trainings = [
        Training(ranks, device, arguments, is_tuned=one) for one in (False, True)
    ]
    for training in trainings:
        training.steps(_SEARCH_STEPS)
    times: list[list[float]] = [[], []]
    for turn in range(arguments.turns):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for at in order:
            times[at] += trainings[at].steps(arguments.steps + _WARM_UP)[_WARM_UP:]
    dist.barrier()
    stock, tuned = (statistics.median(those) if those else 0.0 for those in times)
    return stock, tuned


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Returns the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--width", type=int, default=4096, help="of a layer (4096)")
    parser.add_argument("--layers", type=int, default=16, help="how many (16)")
    parser.add_argument("--batch", type=int, default=1024, help="of a rank (1024)")
    parser.add_argument("--steps", type=int, default=20, help="of a turn (20)")
    parser.add_argument("--turns", type=int, default=5, help="of each (5)")
    parser.add_argument("--out", help="a file for the figures, as JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measures all lines."""
    arguments = parse(argv)
    found = torch.accelerator.current_accelerator()
    device = torch.device("cpu")
    if found is not None:
        device = torch.device(found.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(timeout=timedelta(hours=1))
    per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    rows = []
    for num_hosts in hosts_of_lines(dist.get_world_size() // per_host):
        ranks = list(range(num_hosts * per_host))
        stock, tuned = measure(ranks, device, arguments)
        rows.append({"hosts": num_hosts, "stock_s": stock, "tuned_s": tuned})
        if dist.get_rank() == 0:
            alone = rows[0]
            print(
                f"{num_hosts} hosts, {len(ranks)} ranks: stock {1e3 * stock:.1f} ms "
                f"(linearity {alone['stock_s'] / stock:.2f}), tuned {1e3 * tuned:.1f} ms "
                f"({alone['stock_s'] / tuned:.2f}), {stock / tuned:.3f} x",
                flush=True,
            )
    if arguments.out and dist.get_rank() == 0:
        found_all = {"device": str(device), "torch": torch.__version__, "rows": rows}
        Path(arguments.out).write_text(json.dumps(found_all))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
