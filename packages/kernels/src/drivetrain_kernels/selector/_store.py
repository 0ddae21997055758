"""Decisions kept on disk, so that a job that starts again measures nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.accelerators import accelerator_of
from drivetrain_kernels.selector._decide import Trial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_kernels.selector._workload import Workload

logger = logging.getLogger(__name__)
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Record:
    """What was decided, and from what.

    Args:
        choice: The candidate.
        reason: Why it.
        trials: What was measured.
        verdicts: By candidate, what was decided on it.
    """

    choice: str
    reason: str
    trials: list[Trial]
    verdicts: dict[str, str]

    def to_json(self) -> str:
        """Returns the record as text."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Returns the record of a text.

        Raises:
            ValueError: It is not what `to_json` writes.
        """
        try:
            data = json.loads(text)
            if data["version"] != _VERSION:
                message = f"version {data['version']}, this is {_VERSION}"
                raise ValueError(message)
            trials = [Trial(**fields) for fields in data["trials"]]
            verdicts = dict(data["verdicts"])
            record = cls(str(data["choice"]), str(data["reason"]), trials, verdicts)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            message = f"not a record of a decision: {error}"
            raise ValueError(message) from error
        if record.choice not in {trial.name for trial in trials}:
            message = f"it chose {record.choice!r}, which it did not try"
            raise ValueError(message)
        return record


def fingerprint(workload: Workload, details: Mapping[str, Any]) -> str:
    """Returns a hash of everything that a decision depends on.

    Args:
        workload: What runs: its structure, its shapes and dtypes.
        details: What the decision was asked for: candidates, remaining steps.
    """
    facts = {
        "version": _VERSION,
        "target": _structure(workload),
        "loss": workload.loss_name,
        "batches": [workload.signature(batch) for batch in workload.batches],
        "grad": torch.is_grad_enabled(),
        "autocast": [
            torch.is_autocast_enabled(workload.device.type),
            str(torch.get_autocast_dtype(workload.device.type)),
        ],
        "matmul": torch.get_float32_matmul_precision(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": _device_name(workload.device),
        "threads": torch.get_num_threads(),
        **details,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(folder: Path, key: str) -> Record | None:
    """Returns the record of a key, or None; a file that cannot be read counts as none."""
    path = folder / f"{key}.json"
    try:
        return Record.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("ignoring the decision in %s: %s", path, error)
        return None


def save(folder: Path, key: str, record: Record) -> None:
    """Writes a record, whole or not at all; a disk that refuses costs a log line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(record.to_json())
        Path(name).replace(folder / f"{key}.json")
    except OSError as error:
        logger.warning("cannot keep the decision in %s: %s", folder, error)


def _structure(workload: Workload) -> list[str]:
    lines: list[str] = []
    if workload.module is None:
        target = workload.target
        code = getattr(target, "__code__", None)
        lines = [
            getattr(target, "__qualname__", type(target).__name__),
            "" if code is None else code.co_code.hex(),
            str(getattr(target, "__module__", "")),
        ]
    for module in workload.modules:
        lines += [
            f"{n}:{type(m).__qualname__}:{m.extra_repr()}:{m.training}"
            for n, m in module.named_modules()
        ]
        tensors = [*module.named_parameters(), *module.named_buffers()]
        lines += [f"{n}:{tuple(t.shape)}{t.dtype}{t.requires_grad}" for n, t in tensors]
    return lines


def _device_name(device: torch.device) -> str:
    accelerator = accelerator_of(device)
    if device.type == "cpu":
        return f"{device.type} {platform.machine()} {accelerator.version()}"
    name = accelerator.facts(device.index or 0).name
    return f"{name} {accelerator.version()}"
