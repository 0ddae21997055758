"""Runs a program under a plan on fake tensors, and counts its memory and operations.

Nothing is allocated: a payload that is read under the fake mode has weights without
values, and so has what a factory makes there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import Choice, Plan, SearchError, WorldFacts
from drivetrain_core.extending import (
    OptimizerSource,
    arrange,
    batch_size,
    build,
    find_blocks,
    map_tensors,
    repeated_blocks,
    split_batch,
    tensors_of,
)
from drivetrain_search.prediction.fake_mode import fake_mode
from drivetrain_search.prediction.kernel_memory import KernelMemory
from drivetrain_search.prediction.memory_model import Pass, Peak, States, along_depth
from drivetrain_search.prediction.time_model import work_from_dict
from drivetrain_search.prediction.tracker import ACTIVATIONS, GRADIENTS, Tracker
from drivetrain_search.process.payload import read_payload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from drivetrain_core import Accelerated, Context
    from drivetrain_core.extending import Program
    from drivetrain_search.process.payload import Payload

_FEWEST_BLOCKS = 5
_STATES = ("parameters", "buffers", "batch", "optimizer")


class FakeRuns:
    """The fake runs of one shipped program.

    Args:
        payload: The path of the shipped program.

    Not thread-safe. A program that cannot run on fake tensors raises whatever torch
    or its own code does.
    """

    def __init__(self, payload: Path | str) -> None:
        """Keeps the path: every run reads the program anew, as a run changes it."""
        self._payload = payload
        self._kernels = KernelMemory()
        self._states: dict[tuple[Choice, ...], tuple[States, Any, bool]] = {}

    def structure(
        self, choices: Sequence[Choice], sizes: Sequence[int], whole: int
    ) -> dict[str, Any]:
        """Returns a `Structure` as plain data.

        Args:
            choices: The plan, without what a `Layout` adds.
            sizes: Samples of a micro-batch, one or two values. With the whole batch
                among them there is one pass a step, else there are several.
            whole: Samples of this rank's batch.
        """
        passes, exact = [], True
        for size in sizes:
            counted, whole_depth = self._pass(choices, size, 1 if size == whole else 2)
            passes.append(counted)
            exact = exact and whole_depth
        reduced = tuple(c for c in choices if c.name != "activation_checkpoint")
        if reduced not in self._states:
            self._states[reduced] = self._count_states(reduced)
        states, work, foreach = self._states[reduced]
        return {
            "states": dataclasses.asdict(states),
            "passes": [dataclasses.asdict(one) for one in passes],
            "optimizer_work": work,
            "batch": self._batch_bytes(whole),
            "exact": exact,
            "foreach": foreach,
        }

    def _pass(
        self, choices: Sequence[Choice], size: int, parts: int
    ) -> tuple[Pass, bool]:
        """Returns one pass, and whether every block was run."""
        period = _period(choices)
        found = self._truncated(choices, size, parts, period)
        if found is not None:
            return found, False
        return self._run(choices, size, parts, None), True

    def _truncated(
        self, choices: Sequence[Choice], size: int, parts: int, period: int
    ) -> Pass | None:
        """Returns the pass from two truncated models, or None when that fails."""
        with fake_mode():
            model = _program(read_payload(self._payload)).build_model()
            blocks = repeated_blocks(model, find_blocks(model))
        depth = len(blocks)
        if depth < _FEWEST_BLOCKS or not _alike(blocks):
            return None
        low = 2 + (depth - 2) % period
        high = low + period
        if high >= depth:
            return None
        try:
            ends = [self._run(choices, size, parts, d) for d in (low, high)]
        except Exception:  # noqa: BLE001
            # A model that cannot do with fewer blocks is run whole.
            return None
        return along_depth(ends[0], ends[1], (low, high), depth)

    def _run(
        self, choices: Sequence[Choice], size: int, parts: int, depth: int | None
    ) -> Pass:
        # What is read before the tracker starts is not of the step: it is what a loader
        # reads from.
        with fake_mode():
            program, context, batch = self._read(size * parts)
            with Tracker(self._kernels) as tracker:
                plan = _with_parts(choices, parts)
                _count(tracker, program, plan, context, _own(batch), depth)
        phases = {
            name: Peak(
                moment.get(GRADIENTS, 0),
                sum(v for k, v in moment.items() if k not in (*_STATES, GRADIENTS)),
            )
            for name, moment in tracker.peaks.items()
        }
        work = {
            key: {**ops, **{k: ops[k] / parts for k in ("flops", "bytes", "calls")}}
            for key, ops in tracker.work["passes"].items()
        }
        return Pass(size=size, phases=phases, work=work_from_dict(work))

    def _count_states(self, choices: Sequence[Choice]) -> tuple[States, Any, bool]:
        """Steps the optimizer of the whole model twice, on gradients without values."""
        with fake_mode():
            program, context, _ = self._read(1)
            with Tracker() as tracker:
                return _counted_states(tracker, program, choices, context)

    def _read(self, size: int) -> tuple[Program, Context, Any]:
        """Returns the program, facts of one rank and a batch of a size to match."""
        payload = read_payload(self._payload)
        batch = _resized(payload.guard_batches[0], size)
        facts = payload.context
        context = dataclasses.replace(
            facts,
            world=WorldFacts(),
            batch=dataclasses.replace(facts.batch, size=size),
            loop=dataclasses.replace(facts.loop, loader="iterable"),
            device=dataclasses.replace(facts.device, type="cpu"),
        )
        return dataclasses.replace(_program(payload), data=[batch]), context, batch

    def _batch_bytes(self, size: int) -> int:
        with fake_mode():
            batch = _resized(read_payload(self._payload).guard_batches[0], size)
            return sum({_key(t): t.nbytes for t in tensors_of(batch)}.values())


def _count(
    tracker: Tracker,
    program: Program,
    choices: Sequence[Choice],
    context: Context,
    batch: Any,
    depth: int | None,
) -> None:
    """Runs forward and backward twice and counts the second time."""
    model = program.build_model()
    _truncate(model, depth)
    tracker.claim(model.parameters(), "parameters")
    # The optimizer is counted on its own, on all blocks, unless it looks twice.
    two_passes = hasattr(program.optimizer, "perturb")
    given = program.optimizer if two_passes else _no_optimizer
    program = dataclasses.replace(program, scheduler=None)
    source = OptimizerSource.of(given, model)
    accelerated = _built(program, source, choices, context, model)
    _label(tracker, accelerated, batch)
    _watch(tracker, accelerated)
    for index in range(2):
        if index:
            # What a first pass leaves behind, such as cached angles, stays.
            tracker.claim_rest(ACTIVATIONS, "caches")
            tracker.peaks.clear()
            tracker.section("passes")
        tracker.phase("start")
        accelerated.train_step.accumulate(batch)
        accelerated.train_step.second_pass(batch)
        tracker.section(None)
        tracker.phase("between")
        accelerated.optimizer.zero_grad(set_to_none=True)
    tracker.peaks.pop("between")
    accelerated.close()


def _counted_states(
    tracker: Tracker, program: Program, choices: Sequence[Choice], context: Context
) -> tuple[States, Any, bool]:
    """Steps the optimizer twice and counts what it keeps, and the second step."""
    model = program.build_model()
    tracker.claim(model.parameters(), "parameters")
    blocks = repeated_blocks(model, find_blocks(model))
    source = OptimizerSource.of(program.optimizer, model)
    accelerated = _built(program, source, choices, context, model)
    _label(tracker, accelerated, None)
    trained = [p for p in model.parameters() if p.requires_grad]
    for index in range(2):
        tracker.phase("between")
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        tracker.claim((p.grad for p in trained), GRADIENTS)
        gradients = tracker.live[GRADIENTS]
        if index:
            tracker.section("optimizer")
        tracker.phase(f"optimizer {index}")
        accelerated.train_step.optimizer_step()
        if not index:
            tracker.claim_rest(ACTIVATIONS, "optimizer")
    masters = getattr(accelerated.optimizer, "masters", None)
    stepped = list(masters.values()) if masters else trained
    states = States(
        parameters=tracker.live["parameters"],
        gradients=gradients,
        optimizer=tracker.live["optimizer"],
        buffers=tracker.live["buffers"],
        stepped=sum(p.nbytes for p in stepped if p.requires_grad),
        temporaries=tracker.peaks["optimizer 1"].get(ACTIVATIONS, 0),
        largest_gradient=max(p.nbytes for p in trained),
        block_parameters=sum(p.nbytes for b in blocks for p in b.parameters()),
        num_blocks=len(blocks),
    )
    accelerated.close()
    return states, tracker.work["optimizer"], bool(source.defaults.get("foreach"))


def _program(payload: Payload) -> Program:
    if payload.program is None:
        message = (
            "the program was not pickled: the script that makes it has no fake run"
        )
        raise SearchError(message)
    return payload.program


def _built(
    program: Program,
    source: OptimizerSource,
    choices: Sequence[Choice],
    context: Context,
    model: nn.Module,
) -> Accelerated:
    # A saved state is of the size of a new one, and its counters have no value here.
    source = dataclasses.replace(source, saved_state=None)
    # Both keep all updates at once, which a layout adds; neither has a fake form.
    plain = {"foreach", "fused"} & set(source.defaults)
    source = source.with_options(**dict.fromkeys(plain, False))
    facts = dataclasses.replace(context.model, blocks=find_blocks(model))
    context = dataclasses.replace(context, model=facts)
    plan = Plan(choices=tuple(choices))
    return build(program, model, source, plan, context, torch.device("cpu"))


def _no_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def _with_parts(choices: Sequence[Choice], parts: int) -> list[Choice]:
    if parts == 1:
        return list(choices)
    return list(arrange([*choices, Choice("micro_batch", {"num": parts})]))


def _label(tracker: Tracker, accelerated: Accelerated, batch: Any) -> None:
    """Says what lives after the build, before the first step."""
    module = accelerated.module
    tracker.claim(module.parameters(), "parameters")
    tracker.claim(module.buffers(), "buffers")
    tracker.claim(tensors_of(batch), "batch")
    tracker.claim_rest(ACTIVATIONS, "optimizer")


def _watch(tracker: Tracker, accelerated: Accelerated) -> None:
    """Starts a phase at the first and last block, on the way there and back."""
    module = accelerated.module
    blocks = repeated_blocks(module, find_blocks(module))
    ends = {id(block): "block" for block in blocks}
    if blocks:
        ends[id(blocks[0])], ends[id(blocks[-1])] = "first", "last"
    owner = {id(p): ends[id(block)] for block in blocks for p in block.parameters()}

    for block in blocks:
        name = ends[id(block)]
        block.register_forward_pre_hook(lambda *_, n=name: tracker.phase(n))
    if blocks:
        blocks[-1].register_forward_hook(lambda *_: tracker.phase("head"))

    def accumulated(parameter: torch.Tensor) -> None:
        tracker.claim([parameter.grad], GRADIENTS)
        if id(parameter) in owner:
            tracker.phase(f"backward {owner[id(parameter)]}")

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]


def _truncate(model: nn.Module, depth: int | None) -> None:
    if depth is None:
        return
    facts = find_blocks(model)
    assert facts is not None
    container: Any = model.get_submodule(facts.container)
    del container[depth:]


def _alike(blocks: Sequence[nn.Module]) -> bool:
    """Says whether every block has the same weights by shape."""
    shapes = {tuple((n, p.shape) for n, p in b.named_parameters()) for b in blocks}
    return len(shapes) == 1


def _period(choices: Sequence[Choice]) -> int:
    """Returns after how many blocks a plan treats them alike again."""
    for choice in choices:
        if choice.name == "activation_checkpoint":
            k = choice.config.get("k")
            if choice.config.get("mode") == "every_k" and isinstance(k, int):
                return k
    return 1


def _resized(batch: Any, size: int) -> Any:
    """Returns a batch of fewer samples, or of one that the guard's batch lacks."""
    whole = batch_size(batch)
    if size == whole:
        return batch
    return _own(split_batch(batch, (size, whole - size))[0])


def _own(batch: Any) -> Any:
    """Returns a batch whose tensors share no memory with another's."""
    return map_tensors(torch.clone, batch)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
