"""Derives a plan of tensor parallelism from how values flow, and proves each step."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._batch import batch_size, split_batch
from drivetrain_core._errors import Code, PlanError, ProgramError
from drivetrain_core.parallel.meta.give_values import give_values
from drivetrain_core.parallel.tensor.areas import areas_by_kind
from drivetrain_core.parallel.tensor.candidates import Candidate, area_candidates
from drivetrain_core.parallel.tensor.coverage import coverage_of, gathered_for_coverage
from drivetrain_core.parallel.tensor.flow import Flow, trace_flow
from drivetrain_core.parallel.tensor.plan import (
    Dropped,
    ModuleStyle,
    Style,
    TensorPlan,
    merged,
)
from drivetrain_core.parallel.tensor.repeated import (
    BlockLists,
    find_block_lists,
    shortened,
)
from drivetrain_core.parallel.tensor.sequence import with_sequence
from drivetrain_core.parallel.tensor.verify import (
    LossOf,
    Reference,
    Verdict,
    reference_of,
    run_tensor_plan,
    verify_tensor_plan,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from drivetrain_core.parallel.tensor.candidates import Area

__all__ = ["MIN_COVERAGE", "plan_tensor_parallel"]

MIN_COVERAGE = 0.7
"""The share of each block's parameters that has to be split."""

# Embeddings and heads below this share of the model are not worth an exchange.
_MIN_VOCAB_SHARE = 0.02

_MAX_WHOLE = 50_000_000
"""Parameters of a model that is verified with all its blocks in the end."""

_SLOT = "tensor"

_NUM_SAMPLES = 3
"""Samples that plans are compared on: a number that divides nothing by chance."""


def plan_tensor_parallel(
    model: nn.Module,
    batch: Any,
    loss_of: LossOf,
    degree: int,
    *,
    verify: bool = True,
    vocab: bool = True,
    sequence: bool = False,
    loss_parallel: bool = False,
) -> TensorPlan:
    """Returns how a model can be split over the ranks of the tensor axis.

    The model is traced once; each way to split a part of it is then compared with one
    process, loss and every gradient, with all ranks simulated in this process. Only
    what is exact gets into the plan. Blocks that are repeated are tried on the first
    few. The model is not changed.

    Args:
        model: The user's model, on any device.
        batch: A batch on that device.
        loss_of: Returns the loss of (model, batch).
        degree: Ranks of the axis.
        verify: False for a model too large for this process: the first way whose
            shapes fit is taken, and the plan says that nobody has verified it. Of a
            model on the `meta` device, the first blocks get values to be verified.
        vocab: Whether large embeddings, and the head, may be split too.
        sequence: Whether each rank is to have a part of the sequence between the
            matrices of a block.
        loss_parallel: Whether the head's outputs are to stay split, for a cross
            entropy that is split too; see `loss_context` and `local_loss`.

    Raises:
        PlanError: Less than 70 % of some block can be split, or `sequence` or
            `loss_parallel` is asked for and is not exact.
    """
    if degree < 2:
        because = f"tensor parallelism needs two ranks or more, got {degree}"
        raise PlanError(Code.CONFIG, "tensor", because=because)
    flow = trace_flow(model, batch, loss_of)
    lists = find_block_lists(model)
    trial = _Trial(model, batch, loss_of, lists, verify=verify)
    builder = _Builder(model, flow, lists, degree, trial)
    builder.split_regions()
    builder.gather_for_coverage()
    if vocab or loss_parallel:
        builder.split_vocabularies()
    plan = builder.finish()
    if sequence:
        plan = with_sequence(plan, flow, lists)
        trial.require(plan, "sequence_parallel")
    if loss_parallel:
        plan = _with_split_loss(plan, flow)
        trial.require(plan, "loss_parallel")
    trial.confirm(plan)
    return plan


def _with_split_loss(plan: TensorPlan, flow: Flow) -> TensorPlan:
    heads = [n for r in flow.regions if r.reaches_loss for n in r.writers]
    split = {n: plan.modules[n] for n in heads if n in plan.modules}
    if len(heads) != 1 or len(split) != 1:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "loss_parallel",
            because="it needs one matrix whose outputs go to the loss, split over the "
            f"ranks; there are {len(heads)}, and {len(split)} of them are split",
            fix="leave loss_parallel out",
        )
    style = replace(split[heads[0]], style=Style.COLWISE_LOSS)
    return replace(plan, modules={**plan.modules, heads[0]: style})


@dataclass(frozen=True, slots=True)
class _Step:
    """Something that may be added to a plan: the modules, what it is, and the plan."""

    names: tuple[str, ...]
    label: str
    plan: TensorPlan


class _Trial:
    """Compares plans with one process, on a model with few blocks and samples."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        loss_of: LossOf,
        lists: BlockLists,
        *,
        verify: bool,
    ) -> None:
        self._loss_of, self.verify = loss_of, verify
        batch = _few_samples(model, batch, loss_of)
        self._batch = batch
        short = shortened(model, lists)
        hollow = verify and any(p.is_meta for p in model.parameters())
        # Of a model without weights, a few blocks get some to be compared with.
        self._model = _float(give_values(short) if hollow else short)
        try:
            self._reference = self._refer()
        # Code that counts on the number of blocks raises whatever it likes.
        except Exception as error:
            if hollow:
                raise _no_few_blocks(error) from error
            self._model = _float(copy.deepcopy(model))
            self._reference = self._refer()
        self._present = {name for name, _ in self._model.named_modules()}
        size = sum(p.numel() for p in model.parameters())
        is_short = len(self._present) < len(list(model.named_modules()))
        fits = verify and size <= _MAX_WHOLE and not hollow
        self._whole = model if is_short and fits else None

    def _refer(self) -> Reference | None:
        if self.verify:
            return reference_of(self._model, self._batch, self._loss_of)
        self._loss_of(copy.deepcopy(self._model), self._batch)
        return None

    def require(self, plan: TensorPlan, what: str) -> None:
        """Raises a `PlanError` unless a plan is exact."""
        verdict = self(plan)
        if not verdict.is_exact:
            raise _inexact(what, verdict)

    def confirm(self, plan: TensorPlan) -> None:
        """Raises a `PlanError` unless a plan is exact for all blocks of the model.

        Blocks that look alike may still differ, in a number that they hold. A model
        that is too large for this is not asked.
        """
        if self._whole is None:
            return
        whole = _float(copy.deepcopy(self._whole))
        verdict = verify_tensor_plan(whole, self._batch, self._loss_of, plan)
        if not verdict.is_exact:
            raise _inexact(_SLOT, verdict)

    def __call__(self, plan: TensorPlan) -> Verdict:
        """Returns whether a plan is exact, or, unverified, whether it runs."""
        program = self._model, self._batch, self._loss_of
        here = _restricted(plan, self._present)
        if self.verify:
            return verify_tensor_plan(*program, here, reference=self._reference)
        verdict = run_tensor_plan(*program, here)
        return replace(verdict, is_exact=verdict.has_run)


class _Builder:
    """Puts together what is exact, step by step."""

    def __init__(
        self,
        model: nn.Module,
        flow: Flow,
        lists: BlockLists,
        degree: int,
        trial: _Trial,
    ) -> None:
        self._model, self._flow, self._lists = model, flow, lists
        self._trial = trial
        self._dropped: list[Dropped] = []
        self._undivided: list[str] = []
        self._further: list[_Step] = []
        self.plan = TensorPlan(degree=degree)

    def split_regions(self) -> None:
        """Splits what lies between matrices, each kind in the first exact way."""
        for kind, areas in areas_by_kind(self._model, self._flow, self._lists):
            names = tuple(sorted({self._lists.pattern(n) for n in kind}))
            best = self._first_exact(names, area_candidates(areas, self.plan.degree))
            if best is not None:
                self.plan = merged(self.plan, best)
                self._share_entries(names, areas)

    def _first_exact(
        self, names: tuple[str, ...], candidates: Iterable[Candidate]
    ) -> TensorPlan | None:
        tried = False
        for candidate in candidates:
            tried = True
            verdict = self._trial(candidate.plan)
            if verdict.is_exact:
                return candidate.plan
            self._drop(names, candidate.label, verdict.because)
        if not tried:
            self._undivided.extend(names)
            because = f"sizes are no multiples of {self.plan.degree}"
            self._drop(names, "split", because)
        return None

    def _share_entries(self, names: tuple[str, ...], areas: list[Area]) -> None:
        """Lets matrices that are fed by one tensor share the sum of its gradients."""
        writers = {writer.name for area in areas for writer in area.writers}
        entries: dict[str, tuple[str | int, ...]] = {}
        modules: dict[str, ModuleStyle] = {}
        # Of several modules around them, the innermost.
        for owner, key, fed in sorted(
            self._flow.inputs, key=lambda one: -one[0].count(".")
        ):
            fits = len(fed) > 1 and writers.issuperset(fed)
            if not fits or not modules.keys().isdisjoint(fed):
                continue
            entries[owner] = (*entries.get(owner, ()), key)
            for name in fed:
                modules[name] = replace(self.plan.modules[name], is_entered=True)
        plan = TensorPlan(degree=self.plan.degree, modules=modules, entries=entries)
        if entries:
            self._further.append(_Step(names, "share the sum of gradients", plan))

    def gather_for_coverage(self) -> None:
        """Splits further matrices of blocks that are not split enough, outputs whole."""
        for names, modules in gathered_for_coverage(
            self._model, self._flow, self._lists, self.plan, MIN_COVERAGE
        ):
            plan = TensorPlan(degree=self.plan.degree, modules=modules)
            self._further.append(_Step(names, "split, outputs joined", plan))

    def split_vocabularies(self) -> None:
        """Splits embeddings and heads over the vocabulary, tied ones together."""
        total = sum(p.numel() for p in self._model.parameters())
        heads = {n for r in self._flow.regions if r.reaches_loss for n in r.writers}
        groups: dict[str, dict[str, ModuleStyle]] = {}
        for matrix in self._flow.matrices.values():
            if self._lists.block(matrix.name) or matrix.name in self.plan.modules:
                continue
            module = self._model.get_submodule(matrix.name)
            if matrix.is_embedding and not _is_plain_lookup(module):
                continue
            if matrix.is_embedding or matrix.name in heads:
                style = Style.VOCAB if matrix.is_embedding else Style.COLWISE_GATHERED
                group = groups.setdefault(matrix.weight, {})
                group[matrix.name] = ModuleStyle(style=style)
        for weight, modules in groups.items():
            parameter = self._model.get_parameter(weight)
            rows = parameter.shape[0]
            if parameter.numel() < _MIN_VOCAB_SHARE * total:
                continue
            if rows % self.plan.degree:
                because = f"{rows} rows are no multiple of {self.plan.degree}"
                self._drop(tuple(modules), "split by vocabulary", because)
                continue
            plan = TensorPlan(degree=self.plan.degree, modules=modules)
            self._further.append(_Step(tuple(modules), "split by vocabulary", plan))

    def finish(self) -> TensorPlan:
        """Returns the plan, verified as a whole.

        Raises:
            PlanError: It is not exact, or too little of a block is split.
        """
        self._take_further()
        coverage = coverage_of(self._model, self._lists, self.plan)
        least = min(coverage.items(), key=lambda item: item[1], default=("", 0.0))
        if least[1] < MIN_COVERAGE:
            raise self._refusal(*least)
        return replace(
            self.plan,
            coverage=coverage,
            dropped=tuple(self._dropped),
            is_verified=self._trial.verify,
        )

    def _take_further(self) -> None:
        """Takes all further steps at once, or, where that is not exact, one by one."""
        whole = self.plan
        for step in self._further:
            whole = merged(whole, step.plan)
        if self._trial(whole).is_exact:
            self.plan = whole
            return
        self._trial.require(self.plan, "tensor")
        for step in self._further:
            plan = merged(self.plan, step.plan)
            verdict = self._trial(plan)
            if verdict.is_exact:
                self.plan = plan
            else:
                self._drop(step.names, step.label, verdict.because)

    def _refusal(self, block: str, share: float) -> PlanError:
        degree = self.plan.degree
        if not block:
            return PlanError(
                Code.NOT_APPLICABLE,
                "tensor",
                because="the model has no list of repeated blocks",
                fix="hold the blocks in a ModuleList or Sequential",
            )
        because = f"only {share:.0%} of {block} can be split over {degree} ranks"
        evidence = {
            f"{', '.join(d.names)}: {d.tried}": d.because for d in self._dropped
        }
        if self._undivided:
            sizes = self._sizes(self._undivided)
            return PlanError(
                Code.NOT_DIVISIBLE,
                "tensor",
                because=f"{because}: {sizes}",
                fix=f"use a number of ranks that divides them, {degree} does not",
                evidence=evidence,
            )
        in_blocks = [d for d in self._dropped if any("*" in name for name in d.names)]
        if in_blocks:
            last = in_blocks[-1]
            return PlanError(
                Code.NUMERICS,
                "tensor",
                because=f"{because}; {', '.join(last.names)} ({last.tried}): "
                f"{last.because}",
                evidence=evidence,
            )
        return PlanError(
            Code.NOT_APPLICABLE,
            "tensor",
            because=f"{because}; the rest is not in Linear, Embedding or Conv1D modules",
            fix="use these modules for the matrices of a block",
        )

    def _sizes(self, patterns: list[str]) -> str:
        found = {}
        for name, matrix in self._flow.matrices.items():
            if self._lists.pattern(name) in patterns:
                found[self._lists.pattern(name)] = (
                    f"{matrix.in_features} to {matrix.out_features}"
                )
        return ", ".join(f"{name} maps {sizes}" for name, sizes in found.items())

    def _drop(self, names: tuple[str, ...], tried: str, because: str) -> None:
        self._dropped.append(Dropped(names=names, tried=tried, because=because))


def _inexact(what: str, verdict: Verdict) -> PlanError:
    return PlanError(
        Code.NUMERICS,
        what,
        because=f"it is not exact for this model: {verdict.because}",
        fix="" if what == "tensor" else f"leave {what} out",
    )


def _restricted(plan: TensorPlan, present: set[str]) -> TensorPlan:
    return replace(
        plan,
        modules={k: v for k, v in plan.modules.items() if k in present},
        attributes={k: v for k, v in plan.attributes.items() if k in present},
        entries={k: v for k, v in plan.entries.items() if k in present},
        head_inputs={k: v for k, v in plan.head_inputs.items() if k in present},
    )


def _no_few_blocks(error: Exception) -> PlanError:
    return PlanError(
        Code.NOT_APPLICABLE,
        _SLOT,
        because="the model has no weights, and is proven with a few of its blocks, "
        f"with which it does not run: {type(error).__name__}: {error}",
        fix="plan it with its weights, on a machine that holds them",
    )


def _few_samples(model: nn.Module, batch: Any, loss_of: LossOf) -> Any:
    """Returns the first samples of a batch, or all where the loss needs them."""
    try:
        size = batch_size(batch)
        if size <= _NUM_SAMPLES:
            return batch
        few = split_batch(batch, (_NUM_SAMPLES, size - _NUM_SAMPLES))[0]
        with torch.no_grad():
            loss_of(copy.deepcopy(model), few)
    # A loss may ask for a certain batch; what it raises is its own.
    except (ProgramError, RuntimeError, ValueError, TypeError, IndexError):
        return batch
    return few


def _float(model: nn.Module) -> nn.Module:
    low = (torch.bfloat16, torch.float16)
    return model.float() if any(p.dtype in low for p in model.parameters()) else model


def _is_plain_lookup(module: nn.Module) -> bool:
    return not (
        getattr(module, "max_norm", None)
        or getattr(module, "scale_grad_by_freq", False)
        or getattr(module, "sparse", False)
    )
