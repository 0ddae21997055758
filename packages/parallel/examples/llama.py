"""Trains a small Llama of Hugging Face on several processes, split in three ways.

Run it as `torchrun --nproc-per-node 8 llama.py`, or without torchrun, and it starts its
processes itself. The model has random weights, the text is
the source code of Python's standard library. It prints what was split, the loss and the
speed; with `--check` it trains in one process too, and compares the losses.

The program is written for one process: nothing in `build`, `forward` and the loss knows
of ranks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Subset

from drivetrain_core import (
    DrivetrainError,
    MissingLibraryError,
    accelerate,
    destroy_process_group,
    init_process_group,
)
from drivetrain_core.examples import byte_lm
from drivetrain_core.extending import cycle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_core import Accelerated

MESH = {"pipeline": 2, "shard": 2, "tensor": 2}
"""Two stages, two parts of the data, two parts of each matrix: eight ranks."""

BOUND = 1e-5
"""How far a loss may be from that of one process, relative to itself."""

_SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# What a search may choose here. Reduced precision is left out, for the sake of `--check`.
_ALLOW = ("mesh", "ddp", "fsdp", "micro_batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to train, and how.

    Args:
        mesh: Ranks along each axis; None to search.
        steps: Training steps.
        batch_size: Windows of a global batch.
        length: Bytes of a window.
        max_bytes: Text to read, at most.
        seconds: Of the search.
        trials: Of the search.
        check: Whether to train in one process too.
        sizes: Options of `LlamaConfig` that differ from this example's.
    """

    mesh: Mapping[str, int] | None = field(default_factory=lambda: dict(MESH))
    steps: int = 30
    batch_size: int = 16
    length: int = 64
    max_bytes: int = 2_000_000
    seconds: float = 300.0
    trials: int = 4
    check: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came out, the same on every rank.

    Args:
        plan: What was applied.
        parts: What each axis of the mesh did to the model, in lines.
        losses: Of each step, over the global batch.
        tokens_per_s: Over all steps but the first.
        parameters: Of the model.
        largest_share: Parameters of the rank that has most, of all.
        error: How far a loss is from that of one process, at most; None without check.
    """

    plan: str
    parts: tuple[tuple[str, str], ...]
    losses: tuple[float, ...]
    tokens_per_s: float
    parameters: int
    largest_share: float
    error: float | None = None


def build(sizes: Mapping[str, int] | None = None) -> nn.Module:
    """Returns a Llama with random weights.

    Args:
        sizes: Options of `LlamaConfig` that differ from this example's.

    Raises:
        MissingLibraryError: transformers is not installed; the message says how to.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        message = "this example needs transformers: pip install 'drivetrain-parallel[examples]'"
        raise MissingLibraryError(message) from error
    config = LlamaConfig(**{**_SIZES, **(sizes or {})}, use_cache=False)
    model: nn.Module = LlamaForCausalLM(config)
    return model


def forward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the logits of the next byte."""
    logits: Tensor = model(input_ids=batch[0]).logits
    return logits


def train(job: Job) -> Outcome:
    """Trains on this rank; every rank of the job calls it.

    Raises:
        PlanError: The mesh does not fit the model or the number of ranks.
        MissingLibraryError: transformers is not installed.
    """
    init_process_group()
    search: dict[str, Any] = {}
    if job.mesh is None:
        budget = {"seconds": job.seconds, "trials": job.trials}
        search = {"budget": budget, "allow": _ALLOW}
    accelerated = accelerate(
        partial(build, job.sizes),
        _adamw,
        _data(job),
        byte_lm.loss,
        forward=forward,
        strategy="auto" if job.mesh is None else [("mesh", dict(job.mesh))],
        **search,
    )
    shares: list[Tensor] = []
    began = time.perf_counter()
    for batch in islice(accelerated.batches(), job.steps):
        shares.append(accelerated.train_step(batch))
        if len(shares) == 1:
            # The first step allocates, and is not timed.
            float(shares[0])
            began = time.perf_counter()
    losses = torch.stack(shares).float()
    # A rank's share of a loss: the mean over the ranks is that of the global batch.
    distributed.all_reduce(losses)
    losses /= distributed.get_world_size()
    curve = losses.tolist()
    seconds = time.perf_counter() - began
    kept = torch.tensor(sum(_local(p).numel() for p in _parameters(accelerated)))
    kept = kept.to(accelerated.device)
    distributed.all_reduce(kept, distributed.ReduceOp.MAX)
    total = accelerated.context.model.num_parameters
    return Outcome(
        plan=str(accelerated.plan),
        parts=tuple(_parts(accelerated)),
        losses=tuple(curve),
        tokens_per_s=(job.steps - 1) * job.batch_size * job.length / seconds,
        parameters=total,
        largest_share=int(kept) / total,
        error=_error(job, curve, accelerated.device) if job.check else None,
    )


def train_alone(job: Job, device: torch.device) -> list[float]:
    """Returns the losses of the same program in one process, by a plain loop."""
    torch.manual_seed(0)
    model = build(job.sizes).to(device)
    optimizer = _adamw(model.parameters())
    losses = []
    for ids, targets in islice(cycle(_data(job)), job.steps):
        batch = (ids.to(device), targets.to(device))
        loss = byte_lm.loss(forward(model, batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job, on all ranks of it; returns 0 when the losses are as they should be."""
    arguments = _parser().parse_args(argv)
    if "RANK" not in os.environ:
        given = sys.argv[1:] if argv is None else argv
        return _start(arguments.ranks, given)
    job = Job(
        mesh=None if arguments.strategy == "auto" else arguments.mesh,
        steps=arguments.steps,
        seconds=arguments.seconds,
        trials=arguments.trials,
        check=arguments.check,
    )
    is_first = os.environ["RANK"] == "0"
    try:
        outcome = train(job)
    except DrivetrainError as error:
        if is_first:
            sys.stderr.write(f"{error}\n")
        return 1
    finally:
        destroy_process_group()
    if is_first:
        width = None if sys.stdout.isatty() else 100
        _show(outcome, Console(highlight=False, width=width))
    is_right = outcome.error is None or outcome.error <= BOUND
    return 0 if is_right and outcome.losses[-1] < outcome.losses[0] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", 1)[0],
        allow_abbrev=False,
    )
    add = parser.add_argument
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--mesh", type=_mesh, default=dict(MESH), help="such as pipeline=2,tensor=2"
    )
    how.add_argument("--strategy", choices=["auto"], help="search, instead of a mesh")
    add("--seconds", type=float, default=Job().seconds, help="of the search")
    add("--trials", type=int, default=Job().trials, help="of the search")
    add("--steps", type=_steps, default=Job().steps, help="training steps")
    add("--check", action="store_true", help="compare with one process")
    add("--ranks", type=int, default=8, help="processes to start without torchrun")
    return parser


def _mesh(text: str) -> dict[str, int]:
    pairs = [item.strip().partition("=") for item in text.split(",")]
    if not all(axis and number.isdigit() for axis, _, number in pairs):
        message = (
            f"expected axes and numbers, such as pipeline=2,tensor=2, got {text!r}"
        )
        raise argparse.ArgumentTypeError(message)
    return {axis: int(number) for axis, _, number in pairs}


def _steps(text: str) -> int:
    if not text.isdigit() or int(text) < 2:
        message = f"expected two steps or more, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _start(ranks: int, argv: Sequence[str]) -> int:
    """Starts this program anew on several ranks of this machine."""
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, "-m", *torchrun, __file__]
    # As torchrun does where nobody says otherwise, and tells at length.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.call([*command, *argv], env=environment)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def _data(job: Job) -> DataLoader[tuple[Tensor, Tensor]]:
    """Returns global batches of windows, in one order for every number of ranks."""
    text, _ = byte_lm.read_standard_library(job.max_bytes)
    windows = byte_lm.ByteText(text, job.length)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    subset = Subset(windows, order.tolist())
    return DataLoader(subset, batch_size=job.batch_size, drop_last=True)


def _parameters(accelerated: Accelerated) -> list[Tensor]:
    return [p for model in accelerated.models() for p in model.parameters()]


def _local(parameter: Tensor) -> Tensor:
    local = getattr(parameter, "to_local", None)
    return parameter if local is None else local()


def _parts(accelerated: Accelerated) -> list[tuple[str, str]]:
    why = accelerated.plan.why if accelerated.report is not None else ()
    found = [("why", f"{one.slot} {one.chose}: {one.because}") for one in why]
    plan = accelerated.parallel_plan
    return found if plan is None else [*found, *plan.explain()]


def _error(job: Job, curve: list[float], device: torch.device) -> float:
    """Returns how far the losses are from those of one process, on every rank."""
    error = torch.zeros((), device=device)
    if distributed.get_rank() == 0:
        alone = torch.tensor(train_alone(job, device))
        here = torch.tensor(curve)
        error = ((here - alone).abs() / alone).max().to(device)
    distributed.broadcast(error, 0)
    return float(error)


def _show(outcome: Outcome, console: Console) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    first, last = outcome.losses[0], outcome.losses[-1]
    rows = [
        ("plan", outcome.plan),
        *outcome.parts,
        (
            "parameters",
            f"{outcome.parameters:,}, at most {outcome.largest_share:.0%} on a rank",
        ),
        ("loss", f"{first:.4f} to {last:.4f} in {len(outcome.losses)} steps"),
        ("tokens/s", f"{outcome.tokens_per_s:,.0f}"),
    ]
    if outcome.error is not None:
        verdict = "exact" if outcome.error <= BOUND else f"NOT within {BOUND:.0e}"
        text = f"losses are those of one process to {outcome.error:.0e}: {verdict}"
        rows.append(("check", text))
    for name, value in rows:
        table.add_row(name, Text(value))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
