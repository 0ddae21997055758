"""Tells the hardware and the versions, and what the GPU can do at most, as JSON.

The ceilings are taken on random data: a product of zeros takes less power and ends sooner.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from typing import Any

import torch

DISTRIBUTIONS = ("triton", "numpy", "pytest", "transformers", "liger-kernel")


def seconds_of(work: Any) -> float:
    """The median time of work on the GPU."""
    # Only triton for GPUs has the clock, and this file runs everywhere.
    from triton.testing import do_bench

    return float(do_bench(work, return_mode="median")) / 1e3


def ceilings() -> dict[str, float]:
    """Rates that the device reaches in one large copy or product."""
    a, b = (
        torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    flops = 2 * 8192**3 / seconds_of(lambda: a @ b)
    source = torch.randint(255, (4 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds_of(lambda: target.copy_(source))
    pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    part = source[: 1 << 30]
    to_host = seconds_of(lambda: pinned.copy_(part, non_blocking=True))
    to_gpu = seconds_of(lambda: part.copy_(pinned, non_blocking=True))
    return {
        "bf16_tflops": flops / 1e12,
        "copy_tb_per_s": copied / 1e12,
        "to_host_gb_per_s": pinned.nbytes / to_host / 1e9,
        "from_host_gb_per_s": pinned.nbytes / to_gpu / 1e9,
    }


def gpus() -> list[dict[str, Any]]:
    """The devices that torch sees."""
    every = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return [
        {
            "name": found.name,
            "memory_bytes": found.total_memory,
            "capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "l2_bytes": found.L2_cache_size,
        }
        for found in map(torch.cuda.get_device_properties, every)
    ]


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver() -> str | None:
    """The version of NVIDIA's driver, or None."""
    if not shutil.which("nvidia-smi"):
        return None
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(ask, check=False, capture_output=True, text=True)
    lines = done.stdout.split()
    return lines[0] if lines else None


def main() -> None:
    """Prints one line of JSON."""
    found = gpus()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shared = shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0  # noqa: PTH112
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if found else None
    versions = {"python": platform.python_version(), "driver": driver(), "nccl": nccl}
    versions |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    versions |= {name: version_of(name) for name in DISTRIBUTIONS}
    hardware = {
        "gpus": found,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "memory_bytes": pages,
        "shared_memory_bytes": shared,
        "kernel": platform.release(),
    }
    facts = {"hardware": hardware, "versions": versions}
    print(json.dumps(facts | {"ceilings": ceilings() if found else {}}))


if __name__ == "__main__":
    main()
