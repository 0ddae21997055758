"""Every op on every kind of tensor: right, or refused with a reason in words.

`python op_inputs.py --write` writes the page. A cell is computed: results and gradients are
compared with a plain formula in float64 on the same tensors, argument by argument.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch

from drivetrain_testing import Row, run_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from op_cases import CASES
from op_kinds import KINDS, cell, is_asked, reasons

PAGE = Path(__file__).parents[3] / "docs/benchmarks/kernels_op_inputs_202611.md"
QUICK = ("float64", "bfloat16", "empty", "second derivative", "dual tensors", "vmap")
SAID = {
    "float64": "results and gradients; so for the next three",
    "not contiguous": "each argument with strides of its own",
    "expanded": "each dimension of each argument of one row, expanded",
    "empty": "each dimension that may be 0",
    "autocast": "to bfloat16, of float32 and of bfloat16",
    "inference mode": "and under `no_grad`, and a training step after it",
    "second derivative": "`create_graph=True`",
    "func.grad": "and `vjp`, and the gradient of a gradient",
    "vmap": "over each argument, targets among them, and over all",
    "func.jvp": "by each argument",
    "dual tensors": "`forward_ad`, each argument and all",
    "jacobians": "`jacrev` and `jacfwd` by each argument",
    "subclass": "one without a rule of its own, each argument and all",
    "TwoTensor": "a subclass by `__torch_dispatch__`, of torch's tests",
    "over 2^31": "elements, on the meta device: shapes and dtypes",
    "compiled": "`fullgraph=True`; in the next row also `dynamic=True`",
    "DTensor": "on two ranks: replicated, each dimension of each argument sharded, and "
    "plain tensors beside DTensors",
}


def of_this_rank(names):
    return {name: cell(CASES[name], "DTensor") for name in names}


def table(kinds):
    """Outcomes by op and kind."""
    found = {
        (name, kind): cell(case, kind)
        for name, case in CASES.items()
        for kind in kinds
        if kind != "DTensor" and is_asked(case, kind)
    }
    if "DTensor" in kinds:
        ranks = run_ranks(of_this_rank, 2, list(CASES), timeout_s=300.0)
        found |= {(name, "DTensor"): made for name, made in ranks[0].items()}
    return found


def wrong(found):
    """What is neither right nor refused in words."""
    return [
        f"{name}, {kind}, {label}: {text}"
        for (name, kind), outcomes in found.items()
        for label, text in outcomes.items()
        if text != "right" and not text.startswith("refused: ")
    ]


def every_kind(quick):
    found = table(QUICK if quick else KINDS)
    bad = wrong(found)
    calls = [text for outcomes in found.values() for text in outcomes.values()]
    right = calls.count("right")
    return Row(
        figure=f"{len(found)} cells: of {len(calls)} calls {right} right, "
        f"{len(calls) - right - len(bad)} refused in words; wrong: {len(bad) or 'none'}",
        holds=not bad,
        proven_on="cpu",
        details={"wrong": bad[:20]},
    )


def _cell(outcomes, notes):
    """The text of a cell, with the numbers of its notes."""
    if any(not text.startswith(("right", "refused: ")) for text in outcomes.values()):
        return "WRONG"
    told = reasons(outcomes)
    if not told:
        return "right"
    numbers = sorted(notes.setdefault(why, len(notes) + 1) for why in told)
    marks = ", ".join(map(str, numbers))
    return f"{'right, or ' if 'right' in outcomes.values() else ''}refused ({marks})"


def page(found):
    kinds = list(dict.fromkeys(kind for _, kind in found))
    notes: dict[str, int] = {}
    rows = [
        [
            name,
            *(
                _cell(found[name, kind], notes) if (name, kind) in found else "-"
                for kind in kinds
            ),
        ]
        for name in CASES
    ]
    calls = [text for outcomes in found.values() for text in outcomes.values()]
    right = calls.count("right")
    said = (
        f"Small tensors on a CPU, torch {torch.__version__.partition('+')[0]}: `python "
        f"packages/kernels/benchmarks/op_inputs.py --write`. {len(calls)} calls, of which "
        f"{right} gave the results and the gradients of a plain formula in float64, to the "
        f"rounding of the dtype, and {len(calls) - right - len(wrong(found))} were refused "
        'with an error of the package. An op alone is what `impl="auto"` runs; a word '
        'behind it names an implementation or an option. "-" is not asked: clipping has no '
        "derivative. A number is that of a reason below; where some arguments or some "
        "placements are right, and others refused, the cell says both."
    )
    lines = [
        "# drivetrain-kernels: every op on every kind of tensor, November 2026",
        "",
        said,
        "",
        f"| op | {' | '.join(kinds)} |",
        "| --- " * (len(kinds) + 1) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        "Why a call is refused:",
        "",
        *(f"{number}. {why}" for why, number in notes.items()),
        "",
        "What was tried, where the name does not say it:",
        "",
        *(f"- {kind}: {SAID[kind]}" for kind in kinds if kind in SAID),
        "",
    ]
    return "\n".join(lines)


TABLE = [("op-inputs", "each right, or refused in words", every_kind)]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of torch, about speed
    made = table(KINDS)
    if given.write:
        PAGE.write_text(page(made))
    print(*(wrong(made) or ["no cell is wrong"]), sep="\n")
    sys.exit(bool(wrong(made)))
