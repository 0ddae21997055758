"""Trains the byte-level language model with whatever workers there are.

Run it by itself, or as `drivetrain-elastic run --nproc-per-node 4 -m
drivetrain_elastic.examples.byte_lm`. The steps are the same in any case. With
`--workers-per-copy` the workers of a copy shard it among them, with FSDP2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import fully_shard

from drivetrain_core.examples import byte_lm
from drivetrain_core.services import get_service, init_process_group
from drivetrain_elastic import ElasticLoop, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from drivetrain_elastic._training._step import Step

_LENGTH = 64
_SIZES = {
    "small": byte_lm.ByteLMConfig(
        num_layers=2, dim=64, num_heads=4, num_kv_heads=2, ffn_dim=176
    ),
    # A gigabyte of state, with what AdamW keeps.
    "large": byte_lm.ByteLMConfig(
        num_layers=12, dim=768, num_heads=12, num_kv_heads=12, ffn_dim=2048
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, and returns the exit status.

    Args:
        argv: The arguments; None for those of the process.
    """
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=24, help="windows a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--device", default="cpu", help="as torch names it")
    parser.add_argument("--size", choices=_SIZES, default="small")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="text to read")
    parser.add_argument(
        "--pause-s", type=float, default=0.0, help="makes each step longer"
    )
    parser.add_argument("--log", metavar="DIR", help="a line of JSON for each step")
    parser.add_argument(
        "--checkpoints", metavar="DIR", help="where the state is saved, and found again"
    )
    parser.add_argument(
        "--save-every",
        type=int,
        default=0,
        help="after how many steps; 0 when asked only",
    )
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    if torch.device(args.device).type != "cpu":
        index = _local_rank() % torch.accelerator.device_count()
        torch.accelerator.set_device_index(index)
    model = byte_lm.ByteLM(_SIZES[args.size])
    model.to(device=args.device, dtype=getattr(torch, args.dtype))
    num_sharing = _shard(model) if "MASTER_PORT" in os.environ else 1
    text, held_out = byte_lm.read_standard_library(args.bytes)
    data = byte_lm.ByteText(text, _LENGTH)
    loop = ElasticLoop(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        schedule=Schedule(
            num_samples=len(data), global_batch=args.batch, seed=args.seed
        ),
        num_steps=args.steps,
        checkpointer=(
            get_service("drivetrain-core:checkpointer", args.checkpoints)
            if args.checkpoints
            else None
        ),
        save_every=args.save_every,
    )
    log = _Log(args.log)
    for step in loop:
        with step:
            time.sleep(args.pause_s)
            for part in step.parts():
                batch = _collate(data, part.indices, args.device)
                loss = byte_lm.loss(model(batch[0]), batch) * part.weight
                # Gradients travel during backward: what comes after it may be missing of
                # a step that counts.
                log.write(step, loss.item() / num_sharing, part.indices)
                loss.backward()  # type: ignore[no-untyped-call]
    if loop.is_done:
        with torch.no_grad():
            test = byte_lm.ByteText(held_out, _LENGTH)
            batch = _collate(test, range(min(64, len(test))), args.device)
            bits = byte_lm.bits_per_byte(byte_lm.loss(model(batch[0]), batch).item())
        if loop.rank == 0:
            told = f"{args.steps} steps, {bits:.4f} bits a byte on held-out text"
            print(told, flush=True)
    return 0


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _shard(model: byte_lm.ByteLM) -> int:
    """Shards a model among the workers that hold a copy of it together.

    FSDP takes the mean of their gradients; the weights of parts make up for it.

    Returns:
        How many they are.
    """
    group = init_process_group()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return group.size()


def _collate(
    data: byte_lm.ByteText, indices: Sequence[int], device: str
) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*(data[index] for index in indices), strict=True)
    return torch.stack(inputs).to(device), torch.stack(targets).to(device)


class _Log:
    """Writes what each step was, for whoever compares.

    The loss of a step is the sum over the parts in the world that made it last.
    """

    def __init__(self, folder: str | None) -> None:
        self._file = None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = Path(folder, f"{os.getpid()}.jsonl").open("w")  # noqa: SIM115

    def write(self, step: Step, loss: float, indices: Sequence[int]) -> None:
        if self._file is None:
            return
        line = {
            "step": step.number,
            "epoch": step.epoch,
            "rank": step.rank,
            "pid": os.getpid(),
            "world_size": step.world_size,
            "loss": loss,
            "indices": list(indices),
            "at_s": time.monotonic(),
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


if __name__ == "__main__":
    sys.exit(main())
