"""Finished runs in a JSON file, so that a stopped comparison goes on where it was."""

from __future__ import annotations

import json
import math
import platform
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


class Runs:
    """Runs that are done once, by name, and kept in a file.

    Args:
        file: Where they are kept, as JSON.
        setup: What all runs share: sizes, grids, seeds. A file with another one is not
            touched.

    Raises:
        ValueError: The file was made with another setup.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runs = Runs(pathlib.Path(folder) / "runs.json", {"steps": 3})
        ...     runs.do("one", lambda: {"loss": 0.5})["loss"]
        ...     runs.do("one", lambda: {"loss": 0.7})["loss"]
        0.5
        0.5
    """

    def __init__(self, file: Path, setup: Mapping[str, Any]) -> None:
        """Reads the file if there is one."""
        self.file = file
        self.data: dict[str, Any] = {
            "setup": _plain(setup),
            "made_with": _made_with(),
            "runs": {},
        }
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            if found["setup"] != self.data["setup"]:
                message = (
                    f"{file} holds runs of another setup; name another folder with "
                    "--out, or delete the file"
                )
                raise ValueError(message)
            self.data = found
        file.parent.mkdir(parents=True, exist_ok=True)

    def do(self, name: str, run: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Returns what `run` returned, now or in an earlier process.

        Numbers that are not finite come back as None: JSON has no others.

        Args:
            name: Of the run.
            run: Does it.
        """
        if name not in self.data["runs"]:
            began = time.perf_counter()
            result = dict(run())
            result["seconds"] = time.perf_counter() - began
            self.data["runs"][name] = _plain(result)
            self._write()
            line = f"  {name:<44} {_brief(result)}  {result['seconds']:.1f} s"
            print(line, file=sys.stderr, flush=True)
        return dict(self.data["runs"][name])

    def seconds(self) -> float:
        """Returns the time that all runs in the file took."""
        return float(sum(run["seconds"] for run in self.data["runs"].values()))

    def finish(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds the table's rows to the file."""
        self.data["table"] = _plain(list(rows))
        self._write()

    def _write(self) -> None:
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.data, indent=1), encoding="utf-8")
        part.replace(self.file)


def or_infinite(number: float | None) -> float:
    """Returns a number of a stored run, in which None stands for a diverged one."""
    return math.inf if number is None else float(number)


def mean_and_deviation(numbers: Iterable[float | None]) -> tuple[float, float]:
    """Returns mean and sample standard deviation; NaN where there are too few.

    Example:
        >>> mean_and_deviation([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    values = [or_infinite(number) for number in numbers]
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return statistics.mean(values), spread


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _brief(result: Mapping[str, Any]) -> str:
    numbers = {k: v for k, v in result.items() if isinstance(v, float)}
    numbers.pop("seconds", None)
    return "  ".join(f"{key} {number:.4g}" for key, number in numbers.items())


def _made_with() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": str(torch.get_num_threads()),
        "date": time.strftime("%Y-%m-%d"),
    }
