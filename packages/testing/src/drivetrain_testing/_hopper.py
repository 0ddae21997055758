"""Triton kernels compiled for a Hopper GPU on a machine without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def compile_apart(program: str) -> dict[str, dict[str, Any]] | None:
    """Returns what a program says of the kernels that it compiles, by their variant.

    The program runs without `TRITON_INTERPRET`, which triton reads at its import, and
    prints a JSON object for each kernel, with the key `variant`.

    Args:
        program: The path of a Python file.

    Returns:
        The other keys by variant; None where triton has no assembler for NVIDIA GPUs.

    Raises:
        AssertionError: The program failed.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "No such file or directory" in done.stderr:
        return None
    if done.returncode:
        raise AssertionError(done.stderr)
    lines = map(json.loads, done.stdout.splitlines())
    return {line.pop("variant"): line for line in lines}
