"""Compiles every Triton kernel for GPUs that are not here: a table of what each needs.

    nox -s ahead -- [--json FILE] [--table FILE] [CAPABILITY...]

The kernels are compiled as the ops and optimizers launch them: with their own sizes of
tiles, warps and stages for each kind of GPU. It exits with 1 where one cannot be compiled,
needs more shared memory than a program may have, or spills registers for no known reason.
What a package itself refuses on a GPU is told with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from drivetrain_testing import SHARED_MEMORY, compile_apart

__all__ = ["SPILLS", "faults", "main", "table"]

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    name: ROOT / "packages" / name / "tests" / "test_triton_compile.py"
    for name in ("kernels", "optim")
}
# A division's slow path is a call, which takes eight bytes of the stack.
_CALL = 8
SPILLS: tuple[tuple[str, int, str], ...] = (
    ("^attention ", 512, "whole tiles lie in registers"),
    ("^attention .* 256, ", 10_000, "a tile of 256 columns is more than they hold"),
    ("^attention .*float32", 20_000, "made element by element; `auto` takes others"),
    ("norm 1024, float64", 64, "two warps hold a row and its sums"),
    (r"norm \d{5}, ", 12_000, "a row of 16,384 columns and more is one tile"),
)  # fmt: skip
"""Pattern of variants that may spill, how many bytes a thread at most, and why."""


def faults(
    capability: tuple[int, int], found: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Returns what is wrong with the kernels that were compiled for a GPU.

    Args:
        capability: Of the GPU.
        found: What each variant needs, or why it is refused.

    Example:
        >>> code = {"stack_bytes": 0, "shared_bytes": 1 << 20}
        >>> faults((9, 0), {"norm: kernel": code})
        ['9.0 norm: kernel: 1,048,576 bytes of shared memory, a program has 232,448']
    """
    limit = SHARED_MEMORY[capability]
    wrong = []
    for variant, code in found.items():
        if "refused" in code:
            continue
        told = f"{'.'.join(map(str, capability))} {variant}"
        shared, stack = code["shared_bytes"], code["stack_bytes"]
        if shared > limit:
            wrong.append(
                f"{told}: {shared:,} bytes of shared memory, a program has {limit:,}"
            )
        allowed = max([most for where, most, _ in SPILLS if re.search(where, variant)],
                      default=_CALL)  # fmt: skip
        if stack > allowed:
            wrong.append(f"{told}: {stack:,} bytes of stack, {allowed:,} are allowed")
    return wrong


def table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Returns the most that each kernel needs on each GPU, as Markdown.

    Args:
        found: By capability and variant.
    """
    lines = [
        "| GPU | kernel | variants | registers | stack, bytes | shared memory, bytes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for capability, variants in found.items():
        kernels: dict[str, list[Mapping[str, Any]]] = {}
        for variant, code in variants.items():
            if "refused" in code:
                lines.append(
                    f"| {capability} | {variant} | refused: {code['refused']} |"
                )
                continue
            op = re.split(r"[ ,:]", variant)[0]
            kernels.setdefault(f"{op} {code['kernel'].strip('_')}", []).append(code)
        for kernel, codes in kernels.items():
            most = [max(code[key] for code in codes)
                    for key in ("registers", "stack_bytes", "shared_bytes")]  # fmt: skip
            cells = [capability, kernel, len(codes), *(f"{one:,}" for one in most)]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles; returns 1 if anything is wrong."""
    every = [".".join(map(str, capability)) for capability in SHARED_MEMORY]
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("capabilities", nargs="*", metavar="CAPABILITY")
    parser.add_argument("--json", type=Path, help="keep what each variant needs")
    parser.add_argument("--table", type=Path, help="keep the table")
    arguments = parser.parse_args(argv)
    wanted = arguments.capabilities or every
    if unknown := set(wanted) - set(every):
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(every)}")
    jobs = [(one, program) for one in wanted for program in PROGRAMS.values()]
    with ThreadPoolExecutor(2) as pool:
        results = list(
            pool.map(lambda job: compile_apart(str(job[1]), job[0], "--all"), jobs)
        )
    found: dict[str, dict[str, Any]] = {one: {} for one in wanted}
    wrong = []
    for (one, program), result in zip(jobs, results, strict=True):
        if result is None:
            print(
                "error: this triton has no assembler for NVIDIA GPUs", file=sys.stderr
            )
            return 2
        found[one] |= {
            f"{program.parents[1].name} {name}" if name == "all" else name: code
            for name, code in result.items()
        }
    for one, variants in found.items():
        major, minor = map(int, one.split("."))
        wrong += faults((major, minor), variants)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = table(found)
    if arguments.table:
        arguments.table.write_text(text + "\n", encoding="utf-8")
    print(text, *wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
