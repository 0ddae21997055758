"""Triton kernels compiled for an NVIDIA GPU on a machine without one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from drivetrain_core.accelerators import AcceleratorFacts, accelerator_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_KIB = 1 << 10
SHARED_MEMORY = {
    (7, 5): 64 * _KIB,
    (8, 0): 163 * _KIB,
    (8, 6): 99 * _KIB,
    (8, 9): 99 * _KIB,
    (9, 0): 227 * _KIB,
    (10, 0): 227 * _KIB,
}
"""Bytes that a program may have, by the compute capability of a GPU.

From the CUDA C++ Programming Guide, table of technical specifications.
"""

_PROCESSORS = 132


@dataclass(frozen=True, kw_only=True, slots=True)
class TritonCode:
    """What the machine code of a kernel needs.

    Args:
        kernel: The kernel's name.
        registers: Of each thread.
        stack_bytes: Of each thread; what registers spill lies there.
        shared_bytes: Of each program.
        wide_loads: Instructions that load a vector.
        wide_stores: Likewise, that store.
    """

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    wide_loads: int
    wide_stores: int


@contextlib.contextmanager
def triton_compiled_for(capability: tuple[int, int]) -> Iterator[list[TritonCode]]:
    """Compiles each Triton kernel that is launched, and runs none.

    A launch takes tensors of the CPU, whose contents stand for those of a GPU: their types,
    and how their addresses are aligned, decide what is compiled, and so do the options of
    the launch. What a kernel would have written is not written. Not for a process whose
    Triton interprets.

    Args:
        capability: The compute capability of the GPU, one of `SHARED_MEMORY`.

    Yields:
        What was compiled, in the order of the launches.

    Raises:
        KeyError: The capability is not known.
        Exception: What Triton raises where a kernel cannot be compiled.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    major, minor = capability
    number = 10 * major + minor
    device = SimpleNamespace(
        get_current_device=lambda: number,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", number, 32),
    )
    facts = AcceleratorFacts(
        type="cpu",
        name=f"a GPU of capability {major}.{minor}",
        memory_bytes=1 << 36,
        num_processors=_PROCESSORS,
        shared_memory_bytes=SHARED_MEMORY[capability],
        capability=capability,
        triton=True,
    )
    found: list[TritonCode] = []
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, warmup: bool, **kwargs: Any) -> None:
        del warmup
        found.append(_code(launch(self, *args, warmup=True, **kwargs)))

    driver.set_active(device)
    try:
        with (
            patch.object(JITFunction, "run", compile_only),
            # The tensors are the CPU's.
            patch.object(accelerator_of("cpu"), "facts", lambda _=0: facts),
        ):
            yield found
    finally:
        driver.set_active(None)


def _code(compiled: Any) -> TritonCode:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    needs = {k: int(v) for k, v in re.findall(r"(REG|STACK|LOCAL):(\d+)", done.stdout)}
    ptx = compiled.asm["ptx"]
    wide = r"\.global\S*\.v[248]\."
    return TritonCode(
        kernel=compiled.metadata.name,
        registers=needs["REG"],
        stack_bytes=needs["STACK"] + needs["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        wide_loads=len(re.findall(rf"\bld{wide}", ptx)),
        wide_stores=len(re.findall(rf"\bst{wide}", ptx)),
    )


def compile_apart(program: str, *arguments: str) -> dict[str, dict[str, Any]] | None:
    """Returns what a program says of the kernels that it compiles, by their variant.

    The program runs without `TRITON_INTERPRET`, which triton reads at its import, and
    prints a JSON object for each kernel, with the key `variant`.

    Args:
        program: The path of a Python file.
        *arguments: Of its command line.

    Returns:
        The other keys by variant; None where triton has no assembler for NVIDIA GPUs.

    Raises:
        AssertionError: The program failed.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, program, *arguments],
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
