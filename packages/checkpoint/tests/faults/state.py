"""States to save, of which every element tells its step, and what any folder must keep."""

import contextlib
import io
import json
from pathlib import Path

import torch

from drivetrain_checkpoint import Checkpointer, verify
from drivetrain_checkpoint.cli import main
from drivetrain_core import CheckpointError

JOB = "faults"
SMALL = (5_000, 300, 7, 1)
"""Elements of each tensor: some blocks of a disk, less than one, and hardly any."""
LARGE = (600_000, 600_000, 5_000, 7)
"""Likewise, and so much that copies and writes take their time."""


def state_of(step, sizes=SMALL):
    """Returns the state of a step: all of its elements differ from those of another."""
    dtypes = [torch.float32, torch.int64, torch.float64, torch.int32]
    tensors = {
        f"weight{i}": torch.arange(size).to(dtypes[i % 4]) + step * 1000 + i
        for i, size in enumerate(sizes)
    }
    return {**tensors, "position": step, "note": f"étape {step}", "eps": 1e-08}


def blank(sizes=SMALL):
    """Returns a state to restore into."""
    empty = {
        k: torch.zeros_like(v) if torch.is_tensor(v) else None
        for k, v in state_of(0, sizes).items()
    }
    return {**empty, "position": -1}


def differences(state, step, sizes=SMALL):
    """Returns what of a state is not bit for bit that of a step."""
    wanted = state_of(step, sizes)
    return [
        f"{name} is not that of step {step}"
        for name, value in wanted.items()
        if not (
            torch.equal(state[name], value)
            if torch.is_tensor(value)
            else state[name] == value
        )
    ]


def listed(folder):
    """Returns the folders of the committed checkpoints by step, as the command says."""
    if not folder.exists():
        return {}
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["ls", str(folder), "--json"])
    if status:
        raise CheckpointError(err.getvalue())
    return {
        row["step"]: Path(folder, row["folder"]) for row in json.loads(out.getvalue())
    }


def restored(folder, step=None, sizes=SMALL):
    """Returns the step that a restore brings back, and what is wrong with it."""
    state = blank(sizes)
    found = Checkpointer(folder, job=JOB).restore(state, step)
    return found, differences(state, found, sizes)


def problems_of(folder, required=(), sizes=SMALL):
    """Returns what is wrong with a folder of checkpoints that nobody writes to.

    Args:
        folder: The folder; it may be missing.
        required: Steps that must be there and load.
        sizes: The elements of the tensors that were saved.
    """
    problems = [
        f"{manifest.parent.name} is committed, but {p.file}: {p.because}"
        for manifest in folder.glob("step-*/manifest.json")
        for p in verify(manifest.parent)
    ]
    try:
        saved = listed(folder)
        problems += [f"step {s} is gone" for s in sorted({*required} - saved.keys())]
        for step in saved:
            problems += restored(folder, step, sizes)[1]
        if saved:
            newest, wrong = restored(folder, None, sizes)
            problems += wrong
            if newest < max(saved):
                problems.append(f"step {newest} comes back instead of {max(saved)}")
    except CheckpointError as error:
        problems.append(f"does not load: {error}")
    return problems
