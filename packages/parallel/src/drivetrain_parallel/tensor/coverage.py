"""How much of each block a plan splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_parallel.tensor.plan import ModuleStyle, Style

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from drivetrain_parallel.tensor.flow import Flow
    from drivetrain_parallel.tensor.plan import TensorPlan
    from drivetrain_parallel.tensor.repeated import BlockLists


def is_split(style: ModuleStyle | None, parameter: str) -> bool:
    """Says whether a parameter of a module of some style is split.

    Example:
        >>> row = ModuleStyle(style=Style.ROWWISE)
        >>> is_split(row, "weight"), is_split(row, "bias"), is_split(None, "weight")
        (True, False, False)
    """
    if style is None or style.style is Style.PARTIAL:
        return False
    return style.style is not Style.ROWWISE or parameter == "weight"


def coverage_of(
    model: nn.Module, lists: BlockLists, plan: TensorPlan
) -> dict[str, float]:
    """Returns the share of each block's parameters that a plan splits."""
    total: dict[str, int] = dict.fromkeys(lists.blocks(), 0)
    split: dict[str, int] = dict.fromkeys(total, 0)
    for name, parameter in model.named_parameters():
        block = lists.block(name)
        if not block:
            continue
        owner, _, last = name.rpartition(".")
        total[block] += parameter.numel()
        if is_split(plan.modules.get(owner), last):
            split[block] += parameter.numel()
    return {block: split[block] / total[block] for block in total if total[block]}


def gathered_for_coverage(
    model: nn.Module, flow: Flow, lists: BlockLists, plan: TensorPlan, least: float
) -> Iterator[tuple[tuple[str, ...], dict[str, ModuleStyle]]]:
    """Yields further matrices to be split, with outputs joined at once, by kind.

    Only those of blocks that are not split enough, the largest first, and no more of
    them than needed; whoever takes one up in `plan` must not wait for the next.
    """
    coverage = coverage_of(model, lists, plan)
    kinds: dict[str, list[str]] = {}
    for name, matrix in flow.matrices.items():
        block = lists.block(name)
        if not block or name in plan.modules or matrix.is_embedding:
            continue
        if coverage[block] < least and matrix.out_features % plan.degree == 0:
            kinds.setdefault(lists.pattern(name), []).append(name)

    def size(pattern: str) -> int:
        matrix = flow.matrices[kinds[pattern][0]]
        return matrix.in_features * matrix.out_features

    for pattern in sorted(kinds, key=size, reverse=True):
        names = [n for n in kinds[pattern] if coverage[lists.block(n)] < least]
        if not names:
            continue
        style = ModuleStyle(style=Style.COLWISE_GATHERED)
        for name in names:
            matrix = flow.matrices[name]
            whole = model.get_submodule(lists.block(name))
            total = sum(p.numel() for p in whole.parameters())
            share = matrix.in_features * matrix.out_features / total
            coverage[lists.block(name)] += share
        yield (pattern,), dict.fromkeys(names, style)
