"""What a user may have done to a program, beside each optimization: the same, or refused.

`python integration/tests/same_program.py --write` makes docs/reference/same-program.md:
each cell trains a program by a plain loop, and by `accelerate` with one optimization.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from program_kinds import ROWS
from small_decoder import Case
from torch import nn

from drivetrain_core import DrivetrainError, Numerics, accelerate
from drivetrain_core.extending import numerics_of, read_strategy
from drivetrain_testing import run_ranks

PAGE = Path(__file__).parents[2] / "docs/reference/same-program.md"

ALONE: dict[str, list[Any]] = {
    "activation_checkpoint full": [("activation_checkpoint", "full")],
    "activation_checkpoint selective": [("activation_checkpoint", "selective")],
    "channels_last": ["channels_last"],
    "compile block": [("compile", "block")],
    "compile whole": [("compile", "whole")],
    "compile_select": ["compile_select"],
    "cpu_threads": [("cpu_threads", 1)],
    "data_loading": [("data_loading", 1)],
    "host_allocator": ["host_allocator"],
    "kernels": ["kernels"],
    "micro_batch": [("micro_batch", 2)],
    "optimizer_impl foreach": [("optimizer_impl", "foreach")],
    "optimizer_impl fused": [("optimizer_impl", "fused")],
    "bf16_autocast": [("precision", "bf16_autocast")],
    "bf16_params": [("precision", "bf16_params")],
}
"""Strategies of one process, by the column that they have."""

TWO_RANKS: dict[str, list[Any]] = {
    "ddp": ["ddp"],
    "ddp, micro_batch": ["ddp", ("micro_batch", 2)],
    "fsdp": ["fsdp"],
    "fsdp, bf16_params": ["fsdp", ("precision", "bf16_params")],
    "mesh tensor": [("mesh", {"tensor": 2})],
    "mesh tensor, sequence_parallel": [("mesh", {"tensor": 2}), "sequence_parallel"],
    "mesh pipeline": [("mesh", {"pipeline": 2}), ("micro_batch", 2)],
    "mesh context": [("mesh", {"context": 2})],
    "mesh shard": [("mesh", {"shard": 2})],
}
"""Strategies of two ranks."""

STEPS = 8


def plain(case: Case) -> tuple[list[float], list[int], list[torch.Tensor]]:
    """Returns losses, samples and weights of a loop as its user would write it."""
    model, optimizer = case.model, case.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(model.parameters())
    scheduler = case.scheduler(optimizer) if case.scheduler else None
    losses, numbers = [], []
    for batch in itertools.islice(cycled(case.data), STEPS):
        numbers += case.numbers(batch)
        output = (case.forward or (lambda m, b: m(b[0])))(model, batch)
        loss = output if case.loss is None else case.loss(output, batch)
        loss.backward()
        if case.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        losses.append(float(loss.detach()))
    return losses, numbers, [p.detach().double() for p in model.parameters()]


def cycled(data: Any) -> Any:
    while True:
        yield from data


def judged(verdict: str) -> str:
    """Returns a verdict on a program that is sound: a refusal by a bug of ours is wrong.

    Such a refusal carries what Python or torch has raised, and no rule of ours.
    """
    ours, known = [DrivetrainError], set()
    while ours:
        kind = ours.pop()
        known.add(kind.__name__)
        ours += kind.__subclasses__()
    named = set(re.findall(r"\b[A-Z]\w*(?:Error|Exception)\b", verdict))
    foreign = sorted(named - known)
    is_refused = verdict.startswith("refused")
    return f"WRONG: {foreign[0]}, {verdict}" if is_refused and foreign else verdict


def cell_of(make: Any, strategy: list[Any]) -> str:
    """Returns `same`, `refused: why`, or `WRONG: what`.

    Args:
        make: Returns the program, the same at each call.
        strategy: What `accelerate` is given.
    """
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.set_num_threads(1)
    # Compiled code does not look again whether a module of the class has hooks.
    torch.compiler.reset()
    reference = make()
    start = [
        p.detach().double() for p in copy.deepcopy(list(reference.model.parameters()))
    ]
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected, samples, weights = plain(reference)
    torch.manual_seed(0)
    case = make()
    torch.manual_seed(1)
    try:
        accelerated = accelerate(
            case.model,
            case.optimizer,
            case.data,
            case.loss,
            forward=case.forward,
            scheduler=case.scheduler,
            max_grad_norm=case.max_grad_norm,
            strategy=strategy,
            cache=False,
            progress=False,
        )
    except DrivetrainError as error:
        because = getattr(error, "because", str(error))
        return f"refused: {because}"
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    losses, found = [], []
    for batch in itertools.islice(accelerated.batches(), STEPS):
        found += case.numbers(batch)
        losses.append(summed(accelerated.train_step(batch)))
    accelerated.close()
    low = numerics_of(read_strategy(strategy).choices) is Numerics.LOW_PRECISION
    world = (
        torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    )
    if world > 1:
        parts: list[Any] = (
            [None] * accelerated.data_size * (world // accelerated.data_size)
        )
        torch.distributed.all_gather_object(parts, found)
        found = sorted(set(itertools.chain(*parts)))
        if found != sorted(set(samples)):
            return f"WRONG: {len(found)} of {len(set(samples))} samples came"
    elif sorted(found) != sorted(samples):
        return "WRONG: other samples"
    if not case.is_ordered:
        return "same"
    bound = 3e-2 if low else 2e-4
    gaps = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)]
    if not max(gaps) < bound:
        return f"WRONG: a loss is {max(gaps):.1e} off"
    if world == 1:
        ways = [
            (w - s, way_of(p, s, accelerated.optimizer))
            for w, s, p in zip(weights, start, case.model.parameters(), strict=True)
        ]
        away = sum(float((a - b).square().sum()) for a, b in ways) ** 0.5
        whole = sum(float(a.square().sum()) for a, _ in ways) ** 0.5
        if not away < (0.3 if low else 5e-2) * whole:
            return f"WRONG: weights are {away / whole:.1e} of their way off"
    return "same"


def way_of(
    weight: torch.Tensor, start: torch.Tensor, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Returns how far a weight went, or the master that it is rounded from."""
    for low, master in getattr(optimizer, "master_weights", ()):
        if low is weight:
            return master.detach().double() - start.bfloat16().double()
    return weight.detach().double() - start


def summed(loss: torch.Tensor) -> float:
    """Returns the loss of the global batch."""
    value = loss.detach().double().clone()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
        value /= torch.distributed.get_world_size()
    return float(value)


def cells(
    names: list[str], columns: dict[str, list[Any]], rows: dict[str, Any] = ROWS
) -> dict[tuple[str, str], str]:
    """Returns the verdicts of this process, or of its rank."""
    found = {}
    for name, column in itertools.product(names, columns):
        try:
            found[name, column] = cell_of(rows[name], columns[column])
        except Exception as error:  # noqa: BLE001
            found[name, column] = f"WRONG: {type(error).__name__}: {str(error)[:160]}"
    return found


def on_two_ranks(
    name: str, columns: dict[str, list[Any]], cells_of: Any = cells
) -> dict[tuple[str, str], str]:
    """Returns the verdicts of a row on two ranks, a column at a time if one fails."""
    try:
        first, second = run_ranks(cells_of, 2, [name], columns, timeout_s=240)
    except Exception as error:  # noqa: BLE001
        if len(columns) == 1:
            return {(name, next(iter(columns))): f"WRONG: {str(error)[-300:]!r}"}
        parts = [on_two_ranks(name, {c: s}, cells_of) for c, s in columns.items()]
        return {key: value for part in parts for key, value in part.items()}
    return {
        key: first[key]
        if first[key] == second[key] or first[key][:4] != "same"
        else second[key]
        for key in first
    }


def page(found: dict[tuple[str, str], str]) -> str:
    """Returns the table, and why each cell that is refused is."""
    columns = list(dict.fromkeys(column for _, column in found))
    reasons: dict[str, int] = {}
    lines = [
        "# What stays the same under a plan",
        "",
        "Each cell trains a small program by a plain loop, and by `accelerate` with one",
        "optimization, for eight steps. `=`: the same losses and weights, within what the",
        "optimization declares to do to the numbers, and each sample as often. A number: the",
        "plan is refused before the first step, with the reason below. Made by",
        "`python integration/tests/same_program.py --write`, on CPUs, Gloo for two ranks.",
        "",
    ]
    for title, group in (("One process", ALONE), ("Two ranks", TWO_RANKS)):
        shown = [column for column in columns if column in group]
        lines += [
            f"## {title}",
            "",
            f"| | {' | '.join(shown)} |",
            "|---" * (len(shown) + 1) + "|",
        ]
        for name in ROWS:
            marks = []
            for column in shown:
                verdict = found[name, column]
                if verdict.startswith("refused: "):
                    number = reasons.setdefault(
                        verdict.removeprefix("refused: "), len(reasons) + 1
                    )
                    marks.append(str(number))
                else:
                    marks.append("=" if verdict == "same" else verdict)
            lines.append(f"| {name} | {' | '.join(marks)} |")
        lines.append("")
    lines += ["## Reasons", ""]
    lines += [f"{number}. {' '.join(why.split())}" for why, number in reasons.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Makes the table, and tells of each cell that is neither the same nor refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--columns", nargs="*")
    given = parser.parse_args()
    pick = functools.partial(
        lambda group: {
            c: s for c, s in group.items() if not given.columns or c in given.columns
        }
    )
    found: dict[tuple[str, str], str] = {}
    for name in given.rows:
        found |= cells([name], pick(ALONE))
        if pick(TWO_RANKS):
            found |= on_two_ranks(name, pick(TWO_RANKS))
        for key, verdict in found.items():
            if key[0] == name and verdict != "same":
                print(*key, verdict, sep=" | ", flush=True)
    wrong = sum(verdict.startswith("WRONG") for verdict in found.values())
    refused = sum(verdict.startswith("refused") for verdict in found.values())
    print(f"{len(found)} cells: {wrong} wrong, {refused} refused")
    if given.write:
        PAGE.write_text(page(found), encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import same_program  # by its name, so that ranks find it

    sys.exit(same_program.main())
