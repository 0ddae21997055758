"""Which regions of a model's data flow to split, and what is around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_parallel.tensor.candidates import Area

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from drivetrain_parallel.tensor.flow import Flow, Region
    from drivetrain_parallel.tensor.repeated import BlockLists


def chosen_regions(flow: Flow, lists: BlockLists) -> list[list[Region]]:
    """Returns the regions to split, those of one kind together.

    A matrix can be split by its outputs or by its inputs, so two regions that share
    one are not both taken: the one that concerns fewer matrices is. That leaves out
    the residual stream, which nearly all matrices read or write.
    """
    kinds: dict[frozenset[str], list[Region]] = {}
    for region in flow.regions:
        named = [flow.matrices[name] for name in (*region.writers, *region.readers)]
        has_reader = any(not m.is_embedding for m in named if m.name in region.readers)
        writes = any(not flow.matrices[n].is_embedding for n in region.writers)
        if region.reaches_loss or not has_reader or not writes:
            continue
        key = frozenset(lists.pattern(matrix.name) for matrix in named)
        kinds.setdefault(key, []).append(region)
    taken: set[str] = set()
    found = []
    for key, regions in sorted(kinds.items(), key=lambda item: len(item[0])):
        names = {n for r in regions for n in (*r.writers, *r.readers)}
        of_both = {
            n
            for r in regions
            for n in r.writers
            if any(n in o.readers for o in regions)
        }
        if names & taken or of_both:
            continue
        taken |= names
        found.append((key, regions))
    order = {name: index for index, name in enumerate(flow.matrices)}
    found.sort(key=lambda item: min(order[n] for r in item[1] for n in r.writers))
    return [regions for _, regions in found]


def areas_by_kind(
    model: nn.Module, flow: Flow, lists: BlockLists
) -> Iterator[tuple[list[str], list[Area]]]:
    """Yields the matrices of each kind of region, and its areas.

    A region that reaches over several blocks, as the heads of T5 do by the bias that
    its blocks share, has an area in each.
    """
    for regions in chosen_regions(flow, lists):
        areas: list[Area] = []
        for region in regions:
            areas.extend(_areas(model, flow, lists, region))
        yield [n for r in regions for n in (*r.writers, *r.readers)], areas


def _areas(
    model: nn.Module, flow: Flow, lists: BlockLists, region: Region
) -> Iterator[Area]:
    groups: dict[str, list[str]] = {}
    for name in (*region.writers, *region.readers):
        groups.setdefault(lists.block(name), []).append(name)
    inner = _inner(model, region)
    for block, names in groups.items():
        owner = common_owner(names)
        # What a matrix outside of the blocks writes is read in the blocks.
        readers = [n for n in names if n in region.readers] or region.readers
        yield Area(
            writers=tuple(flow.matrices[n] for n in names if n in region.writers),
            readers=tuple(flow.matrices[n] for n in readers),
            inner={n: shapes for n, shapes in inner.items() if lists.block(n) == block},
            attributes=integers_of(model, owner, set(flow.matrices)),
            arguments={
                key: shape for key, shape in flow.arguments.items() if key[0] == owner
            },
        )


def _inner(model: nn.Module, region: Region) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Returns the modules whose parameters are used inside of a region."""
    found = {}
    for name in region.parameters:
        owner = name.rpartition(".")[0]
        module = model.get_submodule(owner)
        own = [p for p in module._parameters.values() if p is not None]
        found[owner] = tuple(tuple(p.shape) for p in own)
    return found


def common_owner(names: list[str]) -> str:
    """Returns the innermost module that holds all of some modules.

    Example:
        >>> common_owner(["h.0.attn.q", "h.0.attn.out.proj"])
        'h.0.attn'
    """
    paths = [name.split(".")[:-1] for name in names]
    shared: list[str] = []
    for steps in zip(*paths, strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return ".".join(shared)


def integers_of(
    model: nn.Module, owner: str, matrices: set[str]
) -> dict[tuple[str, str], int]:
    """Returns the integers that a module and those in it hold, matrices left out.

    Those of an object called `config` are among them, as `config.name`.
    """
    found: dict[tuple[str, str], int] = {}
    for suffix, module in model.get_submodule(owner).named_modules():
        name = ".".join(part for part in (owner, suffix) if part)
        if name in matrices:
            continue
        for attribute, value in vars(module).items():
            if type(value) is int and not attribute.startswith("_"):
                found[name, attribute] = value
        for attribute, value in vars(vars(module).get("config", _Empty())).items():
            if type(value) is int and not attribute.startswith("_"):
                found[name, f"config.{attribute}"] = value
    return found


class _Empty:
    """Has no attributes."""
