"""The sweep of NCCL's choices, over Gloo on the CPU, where the choices change nothing."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import nccl_sweep

if __name__ == "__main__":
    arguments = nccl_sweep.parse()
    if arguments.worker is not None:
        nccl_sweep.worker(arguments, backend="gloo", device=torch.device("cpu"))
    else:
        nccl_sweep.sweep(arguments, [sys.executable, __file__])
