"""The command `drivetrain-kernels`, also `drivetrain kernels`."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import UsageError, add_commands, busy, run_program
from drivetrain_core.tables import aligned
from drivetrain_kernels._errors import ImplementationNameError, OptionError
from drivetrain_kernels._explain import OPS, Explanation, load_op

if TYPE_CHECKING:
    from collections.abc import Sequence


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    add_commands(parser, files(__package__) / "commands.toml", op_name=_op_name)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["explain", "rms_norm", "--device", "cpu"])
        rms_norm: torch, because: torch's own operator gives the same
          not triton: it needs a CUDA tensor, got cpu
          not eager: it is faster from 131072 elements on, got 240
        0
    """
    return run_program(
        "drivetrain-kernels",
        populate_parser,
        argv,
        description="Fused training operators.",
    )


def _op_name(text: str) -> str:
    """Returns the name of an op, before torch is imported for it."""
    if text not in OPS:
        near = difflib.get_close_matches(text, OPS) or list(OPS)
        message = f"there is no op {text!r}; nearest: {', '.join(near)}"
        raise argparse.ArgumentTypeError(message)
    return text


def _example(name: str, args: argparse.Namespace) -> tuple[Any, Any]:
    """Returns an op and the facts of a small call of it."""
    import torch

    op = load_op(name)
    here = torch.accelerator.current_accelerator(check_available=True)
    try:
        device = torch.device(args.device or (here.type if here else "cpu"))
    except RuntimeError as error:
        message = f"--device: {str(error).splitlines()[0]}"
        raise UsageError(message) from error
    try:
        call_args, kwargs = op.example(device, getattr(torch, args.dtype))
    except (AssertionError, RuntimeError) as error:
        # What torch says where a device is not there differs from one to the next.
        first = str(error).splitlines()[0]
        message = f"there is no device {str(device)!r} here: {first}"
        raise OptionError(message) from error
    return op, op.facts(*call_args, **kwargs)


def list_ops(args: argparse.Namespace) -> int:
    """Carries out the command `list`, and returns the exit status."""
    with busy("looking at what can run here"):
        entries = {name: _implementations(name, args) for name in OPS}
    if args.json:
        print(json.dumps(entries, indent=2))
        return 0
    rows = [("OP", "IMPLEMENTATION", "HERE", "WHY")]
    rows += [
        (name if place == 0 else "", impl, str(one["state"]), one["because"] or "")
        for name, impls in entries.items()
        for place, (impl, one) in enumerate(impls.items())
    ]
    print("\n".join(aligned(rows)))
    return 0


def _implementations(
    name: str, args: argparse.Namespace
) -> dict[str, dict[str, str | None]]:
    """Returns what becomes of an op's implementations here, by their names."""
    op, facts = _example(name, args)
    chosen = op.choose(facts).implementation.name
    return {
        one.name: {
            "state": "auto" if one.name == chosen else "there",
            "because": one.because if one.name == chosen else None,
        }
        if one.refuse(facts) is None
        else {"state": "no", "because": one.refuse(facts)}
        for one in op.implementations
    }


def explain_op(args: argparse.Namespace) -> int:
    """Carries out the command `explain`, and returns the exit status."""
    with busy("looking at what can run here"):
        op, facts = _example(args.op, args)
    try:
        found = op.choose(facts, args.impl)
    except ImplementationNameError as error:
        message = f"--impl: {error}"
        raise UsageError(message) from error
    told = Explanation(
        op.name, found.implementation.name, found.reason, found.passed_over
    )
    print(json.dumps(told._asdict(), indent=2) if args.json else told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
