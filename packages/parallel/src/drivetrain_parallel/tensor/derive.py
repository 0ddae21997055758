"""Derives a plan of tensor parallelism from how values flow, and proves each step."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, PlanError
from drivetrain_parallel.proof.copies import proof_copy
from drivetrain_parallel.tensor.areas import areas_by_kind
from drivetrain_parallel.tensor.candidates import Candidate, area_candidates
from drivetrain_parallel.tensor.coverage import coverage_of, gathered_for_coverage
from drivetrain_parallel.tensor.declared import (
    declared_of,
    declared_split,
    keeps_values_split,
    undivided,
)
from drivetrain_parallel.tensor.explain import short_names
from drivetrain_parallel.tensor.flow import Flow, trace_flow
from drivetrain_parallel.tensor.plan import (
    Dropped,
    ModuleStyle,
    Style,
    TensorPlan,
    merged,
)
from drivetrain_parallel.tensor.repeated import BlockLists, find_block_lists
from drivetrain_parallel.tensor.sequence import with_sequence
from drivetrain_parallel.tensor.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from drivetrain_parallel.tensor.candidates import Area
    from drivetrain_parallel.tensor.verify import LossOf, Verdict

MIN_COVERAGE = 0.7
"""The share of each block's parameters that has to be split."""

# Embeddings and heads below this share of the model are not worth an exchange.
_MIN_VOCAB_SHARE = 0.02

_STATED = "the declared styles"

logger = logging.getLogger(__name__)


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
    model, batch = proof_copy(model, batch, loss_of)
    flow = trace_flow(model, batch, loss_of)
    lists = find_block_lists(model)
    trial = Trial(model, batch, loss_of, lists, verify=verify)
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


class _Builder:
    """Puts together what is exact, step by step."""

    def __init__(
        self, model: nn.Module, flow: Flow, lists: BlockLists, degree: int, trial: Trial
    ) -> None:
        self._model, self._flow, self._lists = model, flow, lists
        self._trial = trial
        self._declared = declared_of(model, flow.matrices, lists)
        self._as_declared: set[str] = set()
        self._not_declared = list(self._declared.dropped)
        self._dropped: list[Dropped] = []
        self._undivided: list[str] = []
        self._further: list[_Step] = []
        self.plan = TensorPlan(degree=degree)

    def split_regions(self) -> None:
        """Splits what lies between matrices, each kind in the first exact way."""
        for kind, areas in areas_by_kind(self._model, self._flow, self._lists):
            names = tuple(sorted({self._lists.pattern(n) for n in kind}))
            best = self._split(names, areas)
            if best is not None:
                self.plan = merged(self.plan, best)
                self._share_entries(names, areas)

    def _split(self, names: tuple[str, ...], areas: list[Area]) -> TensorPlan | None:
        """Returns what the model declares if that is exact, else what is derived."""
        derived = area_candidates(areas, self.plan.degree)
        stated, because = declared_split(
            areas, self.plan.degree, self._declared, self._lists
        )
        if stated is None:
            if because:
                self._drop_declared(names, because)
            return self._first_exact(names, derived)
        verdict = self._trial(stated)
        if not verdict.is_exact:
            self._drop_wrong(names, verdict)
            return self._first_exact(names, derived, (stated, verdict))
        best = None
        if not keeps_values_split(areas, stated):
            best = self._first_exact(names, derived, (stated, verdict))
        if best is None or best == stated:
            self._as_declared.update(stated.modules)
            return stated
        because = "they are exact, and keep less split than what is derived"
        self._drop_declared(names, because)
        return best

    def _first_exact(
        self,
        names: tuple[str, ...],
        candidates: Iterable[Candidate],
        known: tuple[TensorPlan, Verdict] | None = None,
    ) -> TensorPlan | None:
        tried = False
        for candidate in candidates:
            tried = True
            if known is not None and candidate.plan == known[0]:
                verdict = known[1]
            else:
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
            split = writers & self.plan.modules.keys()
            fits = len(fed) > 1 and split.issuperset(fed)
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
            stated = self._declared.modules
            self._as_declared.update(n for n in modules if stated.get(n) == modules[n])

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
                if not self._declared.modules.keys().isdisjoint(modules):
                    because = f"less than {_MIN_VOCAB_SHARE:.0%} of the parameters"
                    self._drop_declared(tuple(modules), because)
                continue
            if rows % self.plan.degree:
                because = f"{rows} rows are no multiple of {self.plan.degree}"
                self._drop(tuple(modules), "split by vocabulary", because)
                continue
            modules = self._vocabulary(modules)
            plan = TensorPlan(degree=self.plan.degree, modules=modules)
            self._further.append(_Step(tuple(modules), "split by vocabulary", plan))

    def _vocabulary(self, derived: Mapping[str, ModuleStyle]) -> dict[str, ModuleStyle]:
        """Returns what the model declares of tied matrices if that is exact."""
        modules, names = dict(derived), tuple(derived)
        declared = self._declared.modules
        stated = {n: declared[n] for n in modules if n in declared}
        if all(modules[name] == style for name, style in stated.items()):
            self._as_declared.update(stated)
            return modules
        degree, matrices = self.plan.degree, self._flow.matrices
        uneven = (undivided(style, matrices[n], degree) for n, style in stated.items())
        because = next(filter(None, uneven), "")
        if because:
            self._drop_declared(names, because)
            return modules
        plan = TensorPlan(degree=degree, modules=stated)
        verdict = self._trial(merged(self.plan, plan))
        if not verdict.is_exact:
            self._drop_wrong(names, verdict)
        elif len(stated) == len(modules):
            self._as_declared.update(stated)
            return stated
        else:
            because = "they are exact, and keep less split than what is derived"
            self._drop_declared(names, because)
        return modules

    def finish(self) -> TensorPlan:
        """Returns the plan, verified as a whole.

        Raises:
            PlanError: It is not exact, or too little of a block is split.
        """
        self._take_further()
        self._drop_unused()
        coverage = coverage_of(self._model, self._lists, self.plan)
        least = min(coverage.items(), key=lambda item: item[1], default=("", 0.0))
        if least[1] < MIN_COVERAGE:
            raise self._refusal(*least)
        return replace(
            self.plan,
            coverage=coverage,
            declared=self._patterns(
                n for n in self.plan.modules if n in self._as_declared
            ),
            dropped=(*self._not_declared, *self._dropped),
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
                fix="hold blocks of one class and size side by side in a ModuleList or "
                "Sequential; fsdp and ddp need none",
            )
        because = f"only {share:.0%} of {block} can be split over {degree} ranks"
        evidence = {
            f"{', '.join(d.names)}: {d.tried}": d.because
            for d in (*self._not_declared, *self._dropped)
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
                fix="use fsdp or pipeline for this model, or change what the block does "
                "with them",
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

    def _patterns(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._lists.pattern(name) for name in names))

    def _drop_unused(self) -> None:
        """Names what the model would split, and what is whole on every rank."""
        known = {name for one in self._not_declared for name in one.names}
        whole = (n for n in self._declared.modules if n not in self.plan.modules)
        names = tuple(n for n in self._patterns(whole) if n not in known)
        if names:
            self._drop_declared(names, "they are whole on every rank")

    def _drop_wrong(self, names: tuple[str, ...], verdict: Verdict) -> None:
        logger.warning(
            "the tensor-parallel plan that the model declares for %s is wrong on %d "
            "ranks, and not used: %s",
            short_names(names),
            self.plan.degree,
            verdict.because,
        )
        self._drop_declared(names, f"they are wrong: {verdict.because}")

    def _drop_declared(self, names: tuple[str, ...], because: str) -> None:
        self._not_declared.append(
            Dropped(names=names, tried=_STATED, because=because, is_declared=True)
        )

    def _drop(self, names: tuple[str, ...], tried: str, because: str) -> None:
        self._dropped.append(Dropped(names=names, tried=tried, because=because))


def _is_plain_lookup(module: nn.Module) -> bool:
    return not (
        getattr(module, "max_norm", None)
        or getattr(module, "scale_grad_by_freq", False)
        or getattr(module, "sparse", False)
    )
