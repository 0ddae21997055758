"""Tells the hardware and the versions, and what the device can do at most, as JSON.

    python integration/gpu/facts.py [--dry-run]

The device is the one that `torch.accelerator` means, of whatever vendor. What only some
vendors have is told where it is there; elsewhere `left_out` names it, and says why.
The ceilings are taken on random data: a product of zeros takes less power and ends sooner.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.accelerators import accelerator_of

if TYPE_CHECKING:
    from drivetrain_core.accelerators import Accelerator, AcceleratorFacts

DISTRIBUTIONS = ("triton", "numpy", "pytest", "transformers", "liger-kernel")
# How long work is repeated, and how often at least.
_MEASURE_S = 0.2
_TIMES = 3


def find_accelerator() -> Accelerator | None:
    """Who knows the devices that torch can use here; None without any."""
    device = torch.accelerator.current_accelerator(check_available=True)
    found = accelerator_of(device) if device else None
    return found if found and found.device_count() else None


def seconds_of(accelerator: Accelerator, work: Callable[[], object]) -> float:
    """The median time of work on the device."""
    if accelerator.type == "cuda":
        # Only triton for GPUs has the clock, and this file runs everywhere.
        from triton.testing import do_bench

        return float(do_bench(work, return_mode="median")) / 1e3
    work()
    accelerator.synchronize()
    taken: list[float] = []
    while len(taken) < _TIMES or sum(taken) < _MEASURE_S:
        started = time.perf_counter()
        work()
        accelerator.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def ceilings(
    accelerator: Accelerator, *, side: int = 8192, most_bytes: int = 4 << 30
) -> tuple[dict[str, float], dict[str, str]]:
    """Rates that the device reaches in one large copy or product.

    Args:
        accelerator: Who knows the device.
        side: Of the matrices.
        most_bytes: What is copied; no more than a quarter of the device's memory.

    Returns:
        The rates, and why others are left out.
    """
    facts, device = accelerator.facts(), accelerator.type
    found: dict[str, float] = {}
    without: dict[str, str] = {}
    if "bfloat16" in facts.dtypes:
        a, b = (
            torch.randn(side, side, device=device, dtype=torch.bfloat16)
            for _ in range(2)
        )
        flops = 2 * side**3 / seconds_of(accelerator, lambda: a @ b)
        found["bf16_tflops"] = flops / 1e12
    else:
        without["bf16_tflops"] = f"{facts.name} computes in {', '.join(facts.dtypes)}"
    size_bytes = min(most_bytes, facts.memory_bytes // 4)
    source = torch.randint(255, (size_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied_s = seconds_of(accelerator, lambda: target.copy_(source))
    found["copy_tb_per_s"] = 2 * source.nbytes / copied_s / 1e12
    if not facts.pinned_memory:
        names = ("to_host_gb_per_s", "from_host_gb_per_s")
        why = f"{facts.name} takes no page-locked memory"
        return found, without | dict.fromkeys(names, why)
    pinned = torch.empty(size_bytes // 4, dtype=torch.uint8, pin_memory=True)
    part = source[: pinned.nbytes]
    to_host_s = seconds_of(accelerator, lambda: pinned.copy_(part, non_blocking=True))
    from_host_s = seconds_of(accelerator, lambda: part.copy_(pinned, non_blocking=True))
    found["to_host_gb_per_s"] = pinned.nbytes / to_host_s / 1e9
    found["from_host_gb_per_s"] = pinned.nbytes / from_host_s / 1e9
    return found, without


def describe(facts: AcceleratorFacts, properties: object) -> dict[str, Any]:
    """One device, by what it and its properties in torch tell; None is unknown."""
    has_capability = facts.capability != (0, 0)
    return {
        "name": facts.name,
        "memory_bytes": facts.memory_bytes,
        "capability": ".".join(map(str, facts.capability)) if has_capability else None,
        "multiprocessors": facts.num_processors or None,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
    }


def gpus(accelerator: Accelerator) -> list[dict[str, Any]]:
    """The devices that torch sees, of whatever vendor."""
    module = torch.get_device_module(accelerator.type)
    ask = getattr(module, "get_device_properties", lambda index: None)
    every = range(accelerator.device_count())
    return [describe(accelerator.facts(index), ask(index)) for index in every]


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver, or None."""
    if not shutil.which("nvidia-smi"):
        return None
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(ask, check=False, capture_output=True, text=True)
    lines = done.stdout.split()
    return lines[0] if lines else None


def versions(accelerator: Accelerator | None) -> dict[str, str | None]:
    """The versions that results depend on; None is what is not there."""
    is_cuda = accelerator is not None and accelerator.type == "cuda"
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if is_cuda else None
    is_other = accelerator is not None and not is_cuda
    driver = accelerator.driver() or None if is_other else nvidia_driver()
    found = {"python": platform.python_version(), "driver": driver, "nccl": nccl}
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    found |= {name: version_of(name) for name in DISTRIBUTIONS}
    return found | {"accelerator": (accelerator and accelerator.version()) or None}


def unknown(
    accelerator: Accelerator,
    devices: Sequence[dict[str, Any]],
    told: dict[str, str | None],
) -> dict[str, str]:
    """What nothing tells of the device, by name, and why."""
    names = [key for one in devices for key, value in one.items() if value is None]
    wanted = ("driver", "nccl", "cuda", "accelerator")
    names += [key for key in wanted if told[key] is None]
    return dict.fromkeys(names, f"nothing tells it of {accelerator.type}")


def measure(*, dry_run: bool = False) -> dict[str, Any]:
    """All that is told.

    Args:
        dry_run: Whether the ceilings are left out, for which a device works long.
    """
    accelerator = find_accelerator()
    shared = shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0  # noqa: PTH112
    told = versions(accelerator)
    devices = gpus(accelerator) if accelerator else []
    hardware: dict[str, Any] = {
        "gpus": [{k: v for k, v in x.items() if v is not None} for x in devices],
        "accelerator": None,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "shared_memory_bytes": shared,
        "kernel": platform.release(),
    }
    left_out: dict[str, str] = {}
    rates: dict[str, float] = {}
    if accelerator:
        first = dataclasses.asdict(accelerator.facts())
        hardware["accelerator"] = {"count": len(devices), **first}
        left_out = unknown(accelerator, devices, told)
        dry = {"ceilings": "a dry run measures none"}
        rates, without = ({}, dry) if dry_run else ceilings(accelerator)
        left_out |= without
    facts = {"hardware": hardware, "versions": told, "left_out": left_out}
    return facts | {"ceilings": rates}


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--dry-run", action="store_true", help="leave the ceilings out")
    print(json.dumps(measure(dry_run=parser.parse_args(argv).dry_run)))


if __name__ == "__main__":
    main()
