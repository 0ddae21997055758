"""Rehearses a plan: steps as written and under it, before the model is changed."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import inspect
import json
import logging
import math
import traceback
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._build import build
from drivetrain_core._choice import Numerics, Ok, Phase, Reject
from drivetrain_core._compose import numerics_of
from drivetrain_core._context import WorldFacts
from drivetrain_core._data.batch import batch_size, map_tensors, split_batch
from drivetrain_core._data.random_stream import RandomStream
from drivetrain_core._errors import (
    Code,
    DrivetrainError,
    PlanError,
    ProgramError,
    first_line,
)
from drivetrain_core._model.snapshot import ModelSnapshot, used_globals
from drivetrain_core._plan import Plan
from drivetrain_core._ranks import agree, share
from drivetrain_core._registry import find
from drivetrain_core._version import __version__
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.accelerators._isolated_rng import isolated_rng
from drivetrain_core.mesh_shape import data_part, mesh_of
from drivetrain_core.numerics.checksum import gathered, row_checksums
from drivetrain_core.numerics.constants import without_constants
from drivetrain_core.numerics.double_backward import DoubleBackward
from drivetrain_core.numerics.guard import MOST_ASTRAY, compare, differences
from drivetrain_core.numerics.observe import observe
from drivetrain_core.numerics.structure_check import not_finite, some
from drivetrain_core.numerics.tolerance import distance
from drivetrain_core.numerics.without_dropout import WithoutDropout
from drivetrain_core.services._whole_file import write_whole
from drivetrain_core.services.batch_plan import BatchPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_core._accelerated import Accelerated
    from drivetrain_core._context import Context
    from drivetrain_core._optimizer.source import OptimizerSource
    from drivetrain_core._program import Program
    from drivetrain_core.numerics.observation import Observation
    from drivetrain_core.services.model_layout import LayoutPlan

logger = logging.getLogger(__name__)

_Samples = dict[str, tuple[float, ...]]

_FIX = "leave it out, or pass check=False to train what it makes of the program"
_CLIP = "clip the whole gradient, by max_grad_norm, or pass check=False"
_NORMS = {torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d}
_SYNC = (
    "each rank takes statistics of its own samples in {}: on GPUs, convert the model by "
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm; else use GroupNorm or LayerNorm, or "
    "pass check=False"
)
_KEEP = "let the model or the loss hold what the program counts, or pass check=False"
_ONCE = "change it in a hook of the optimizer's step, or pass check=False"
_AFTER = "step after the backward, which has the gradient of a part of the batch alone"
_TWICE = "FSDP2 frees what a gradient needs to be differentiated again (create_graph)"
# They draw as the program does. What is compiled in a mode of torch would be compiled again
# without it, and what is recomputed on another thread knows of none.
_KEEPS_DRAWS = {Phase.COMPILE, Phase.ACTIVATION_CHECKPOINT}
_LIMIT_S = 600.0
# What a forward changes after its first call, or moves towards weights that train, shows
# in the second step.
_STEPS = 2
# A power of two, so that nothing is rounded; gradients grow by less in a training.
_HUGE, _LARGE, _BENT = 2.0**20, 2.0**10, 0.1
_COUNTED = 0.03
_FIRST, _LAST = Phase.MODEL_SWAP, Phase.SCHEDULE

# What a tensor calls in the backward.
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
# What every module has, and which tells nothing that the parts do not.
_OF_TORCH = vars(torch.nn.Module()).keys() - {"training"}

UNCHECKED = {"checked": False}
"""What the `guard` of a plan says that was not held to the program."""


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What a plan is rehearsed with.

    The program as written trains for two steps on a batch that is cut small, on each rank
    alone; then the plan does, on the same samples and from the same weights, all ranks
    together.
    Weights that are all equal, such as gates that start at zero, are drawn for it: they
    would hide what is wrong. Afterwards the model is what it was.

    Args:
        program: The user's program.
        module: Its model, on its device.
        source: The recipe of its optimizer.
        context: The facts.
        device: Where to train.
        batch: A global batch.
        folder: Where it is kept what was checked, so that a program that starts again
            does not pay for it; nowhere when None.
    """

    program: Program
    module: torch.nn.Module
    source: OptimizerSource
    context: Context
    device: torch.device
    batch: Any
    folder: Path | None = None

    def check(self, plan: Plan, layout: LayoutPlan | None) -> dict[str, Any]:
        """Returns how far the plan is from the program, as a plan's `guard` holds it.

        Args:
            plan: The plan.
            layout: What each axis of its mesh does to the model.

        Raises:
            PlanError: It cannot be applied, its step fails where the program's does not,
                or loss, gradients, updates or buffers are not those of the program.
        """
        world, record = self.context.world, self._record(plan)
        known = share(lambda: _read(record), world, _LIMIT_S, "look for a check")
        if known:
            return known
        held = *self.program.held(), *self._step_hooks()
        snapshot = ModelSnapshot(self._modules(), *held, values=True)
        phases = {find(choice.name).phase for choice in plan.choices}
        try:
            with nullcontext() if phases & _KEEPS_DRAWS else WithoutDropout():
                seen = self._check(plan, layout, snapshot)
        finally:
            snapshot.restore()
        if record is not None and world.rank == 0 and seen != UNCHECKED:
            with suppress(OSError):  # It is checked again then.
                write_whole(record, json.dumps(seen))
        return seen

    def _modules(self) -> torch.nn.ModuleList:
        """Returns the model, and a loss or forward that is a module with state too."""
        parts = [self.module, self.program.loss, self.program.forward]
        return torch.nn.ModuleList(p for p in parts if isinstance(p, torch.nn.Module))

    def _step_hooks(self) -> list[Any]:
        """Returns what the user's optimizer calls before and after its steps."""
        return list(chain.from_iterable(h.values() for h in self.source.hooks.values()))

    def _record(self, plan: Plan) -> Path | None:
        """Returns where it is kept that this plan was checked with this very program."""
        if self.folder is None:
            return None
        program, modules = self.program, list(self._modules().modules())
        parts = [program.loss, program.forward, program.optimizer, program.scheduler]
        parts += [self.source.kind, *map(type, modules), *self._step_hooks()]
        own = [*chain.from_iterable(vars(module).items() for module in modules)]
        hooks = [held for name, held in own if name.endswith("_hooks")]
        hooks += [getattr(p, n) for p in self.module.parameters() for n in _HOOKS]
        parts += chain.from_iterable(held.values() for held in hooks if held)
        plain = (bool, int, float, str, list, tuple, dict)
        settings = [s for s in own if s[0] not in _OF_TORCH and isinstance(s[1], plain)]
        facts = (
            *(torch.__version__, __version__, plan.to_dict()["strategy"]),
            *(self.context.fingerprint(), self.context.summary(), self.program.seed),
            *(self.source.groups, self.source.defaults, self.program.max_grad_norm),
            *(settings, sorted({_source(part) for part in parts})),
            *(_STEPS, int(row_checksums(self.batch).sum())),
        )
        return self.folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()}.json"

    def _check(
        self, plan: Plan, layout: LayoutPlan | None, snapshot: ModelSnapshot
    ) -> dict[str, Any]:
        world, numerics = self.context.world, numerics_of(plan.choices)
        batch = gathered(self.batch if world.rank == 0 else None)[0]
        alone = dataclasses.replace(self.context, world=WorldFacts())

        def written(
            rows: int, seed: int = 0, *, rounded: bool = False, times: float = 1.0
        ) -> Observation:
            self._start(snapshot, rounded=rounded)
            part = _first(batch, rows)
            return self._observed(Plan(), alone, None, part, seed, times=times)

        def sound(rows: int) -> Observation:
            found = written(rows)
            if because := not_finite(found):
                raise ProgramError(because)
            return found

        ranks, rank = data_part(plan.choices, world.size, world.rank)
        size = batch_size(batch)
        rows = _rows(size, ranks, plan)
        twice = DoubleBackward()
        sharded = any(choice.name == "fsdp" for choice in plan.choices)
        try:
            with twice if sharded else nullcontext():
                try:
                    expected = agree(partial(sound, rows), world, "rehearse")
                except Exception:  # noqa: BLE001
                    rows = size  # A part of the batch may be none of the program's.
                    expected = agree(partial(sound, rows), world, "rehearse")
        except Exception as error:
            # A plan may be there to divide it.
            if accelerator_of(self.device).is_out_of_memory(error):
                logger.warning("%s is not checked, since as written: %s", plan, error)
                return UNCHECKED
            message = (
                f"a step of the program as written, without {plan}, fails: "
                f"{first_line(error)}; mend it, or pass check=False"
            )
            raise ProgramError(message) from error
        if twice.is_seen:
            raise PlanError(Code.NOT_APPLICABLE, "fsdp", because=_TWICE, fix="use ddp")
        ways = snapshot.ways()
        split = BatchPlan(world_size=ranks, global_batch=rows)
        sizes = [split.for_rank(one).size for one in range(ranks)]
        part = split_batch(_first(batch, rows), sizes)[rank]

        def planned(times: float = 1.0) -> Observation:
            self._start(snapshot)
            return self._observed(plan, self.context, layout, part, times=times)

        found = planned()
        strayed = _strayed(ways, snapshot)
        if world.size > 1:  # Each rank has sent all samples through the program.
            expected = dataclasses.replace(expected, accounting=found.accounting)
        verdict = _agreed(compare(expected, found, numerics))
        if isinstance(verdict, Reject):
            # What chance and rounding do to the program itself is held against no plan.
            second = dataclasses.replace(written(rows), accounting=expected.accounting)
            again = _agreed(compare(expected, second, Numerics.LOW_PRECISION))
            if isinstance(again, Reject):
                because = f"a second step from the same start differs: {again.because}"
                raise PlanError(Code.NUMERICS, str(plan), because=because, fix=_KEEP)
            own = differences(expected, written(rows, seed=1))
            noise = max(own["worst_grad_rel"], 1.0 - own["smallest_cosine"])
            swayed = written(rows, rounded=True)
            expected = dataclasses.replace(
                expected,
                noise=own["loss_rel"],
                gradient_noise=noise,
                swayed=swayed.losses,
                swayed_updates=swayed.updates,
                swayed_buffers=swayed.buffers,
            )
            verdict = _agreed(compare(expected, found, numerics))
        if isinstance(verdict, Reject):
            because = f"a step of it is none of the program's: {verdict.because}"
            modules = self.module.named_modules()
            norms = [n for n, m in modules if type(m) in _NORMS and m.training]
            fix = _SYNC.format(some(norms)) if norms and world.size > 1 else _FIX
            fix = fix if expected.norms else _AFTER
            raise PlanError(Code.NUMERICS, str(plan), because=because, fix=fix)
        if strayed:
            written(rows, seed=1)  # What chance does is held against no plan here, too.
            strayed -= _strayed(ways, snapshot)
        if strayed:
            because = (
                f"a step of it is none of the program's: {some(sorted(strayed))} changes "
                "otherwise, in a forward or loss that is called for each part of the batch"
            )
            raise PlanError(Code.NUMERICS, str(plan), because=because, fix=_ONCE)
        if world.size * found.accounting.num_micro_batches == 1:
            return differences(expected, found)

        def enlarged(times: float) -> Observation | None:
            seen = None
            with suppress(Exception):  # What fails for a huge loss alone tells nothing.
                seen = written(rows, times=times)
            is_sound = seen is not None and not not_finite(seen)
            return seen if all(gathered(is_sound)) else None

        # What has few bits, or is looked at by the program, ends before the larger one.
        times, huge = _HUGE, enlarged(_HUGE)
        if huge is None:
            times, huge = _LARGE, enlarged(_LARGE)
        if bent := _bent(expected, enlarged, times, huge):
            because = (
                f"the gradient of {some(bent)} does not grow with the loss, as where a "
                "hook clips it: that of each part of the batch would be clipped alone"
            )
            raise PlanError(Code.NUMERICS, str(plan), because=because, fix=_CLIP)
        # An optimizer may take the norm of what a rank has of a gradient. A rank of a
        # pipeline has its loss from the schedule.
        names = {choice.name for choice in plan.choices} & {"fsdp", "mesh"}
        if huge and names and mesh_of(plan.choices, world.size).pipeline == 1:
            known = ("accounting", "noise", "gradient_noise")
            huge = dataclasses.replace(huge, **{k: getattr(expected, k) for k in known})
            verdict = _agreed(compare(huge, planned(times), numerics))
            if isinstance(verdict, Reject):
                because = f"on {times:g} times its loss, {verdict.because}"
                raise PlanError(Code.NUMERICS, str(plan), because=because, fix=_CLIP)
        return differences(expected, found)

    def _start(self, snapshot: ModelSnapshot, *, rounded: bool = False) -> None:
        """Gives the model the weights of the rehearsal, the same on all ranks.

        Args:
            snapshot: Of the model.
            rounded: Whether they are rounded to bfloat16, to see what that does.
        """
        snapshot.restore()
        generator = torch.Generator().manual_seed(self.program.seed)
        for tensor in self.module.parameters():
            tensor.grad = None
            values = tensor.detach()
            drawn = without_constants(values, generator)
            if rounded and drawn.is_floating_point():
                drawn = drawn.bfloat16()
            if drawn is not values:
                values.copy_(drawn)
        if self.context.world.size > 1:
            for held in (*self.module.parameters(), *self.module.buffers()):
                torch.distributed.broadcast(held.detach(), 0)

    def _observed(
        self,
        plan: Plan,
        context: Context,
        layout: LayoutPlan | None,
        batch: Any,
        seed: int = 0,
        *,
        times: float = 1.0,
    ) -> Observation:
        """Trains for steps under a plan and returns what they did.

        Args:
            plan: The plan.
            context: The facts of the ranks that train.
            layout: What each axis of its mesh does to the model.
            batch: This rank's part of the batch.
            seed: What is added to the program's own.
            times: What the loss is multiplied by.

        Raises:
            PlanError: It cannot be applied, or its step fails.
        """
        program, device = self.program, self.device
        batch = map_tensors(lambda tensor: tensor.to(device).clone(), batch)

        seed += program.seed
        with isolated_rng(seed), RandomStream(seed).in_place():
            built = build(
                program, self.module, self.source, plan, context, device, layout
            )
            step = partial(_step, built, batch, seed, times)
            try:
                return agree(step, context.world, "rehearse")
            finally:
                built.close()
                del built, step
                gc.collect()  # DDP's hooks on parameters live as long as it does.


def _agreed(verdict: Ok | Reject) -> Ok | Reject:
    """Returns a verdict that is the same on all ranks, each of which has its own stage."""
    every = gathered(verdict)
    return next((v for v in every if isinstance(v, Reject)), verdict)


def _bent(
    expected: Observation,
    enlarged: Callable[[float], Observation | None],
    times: float,
    huge: Observation | None,
) -> list[str]:
    """Returns the parameters whose gradient is no straight line in the loss.

    Args:
        expected: The program as written.
        enlarged: Returns it with its loss so many times as large; all ranks call it.
        times: A large number.
        huge: What it returns for that.
    """

    def rise(seen: Observation | None, times: float) -> _Samples:
        samples = {} if seen is None else seen.samples
        pairs = {
            n: zip(expected.samples[n], v, strict=True) for n, v in samples.items()
        }
        slope = 1.0 / (times - 1.0)
        return {n: tuple((b - a) * slope for a, b in each) for n, each in pairs.items()}

    far = rise(huge, times)
    found = [n for n, v in far.items() if distance(expected.samples[n], v) > _BENT]
    if any(gathered(found)):
        # A hook that adds what does not depend on the gradient may stay.
        near = rise(enlarged(2.0), 2.0)
        found = [n for n in found if n in near and distance(near[n], far[n]) > _BENT]
    return sorted({name for names in gathered(found) for name in names})


def _strayed(
    expected: list[tuple[str, torch.Tensor]], snapshot: ModelSnapshot
) -> set[str]:
    """Returns what went another way than in the program: its tensors, and its counters.

    Args:
        expected: The ways in the program as written.
        snapshot: That they were taken from; it looks at what is there now.
    """
    names, apart, whole = set[str](), 0.0, 0.0
    for (name, way), (_, found) in zip(expected, snapshot.ways(), strict=True):
        if way.numel() == found.numel() == 1:
            # What is no counter may have one value for each part of a batch.
            times = float(found / way)
            number = round(times) if math.isfinite(times) else 0
            if number > 1 and abs(times - number) < _COUNTED * number:
                names.add(name)
        elif way.shape == found.shape and way.any():
            # All together: what follows a weight without a gradient goes as rounding goes.
            apart, whole = apart + (way - found).norm() ** 2, whole + way.norm() ** 2
    if apart > (MOST_ASTRAY**2) * whole:
        names.add("a tensor that the model does not own")
    return {name for names in gathered(names) for name in names}


def _step(built: Accelerated, batch: Any, seed: int, times: float) -> Observation:
    train, steps = built.train_step, _STEPS
    if times != 1.0:
        loss_of, steps = train._loss, 1
        train._loss = lambda output, batch: loss_of(output, batch) * times
    try:
        return observe(built, [batch], seed=seed, num_steps=steps, steers=False)
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        if not built.plan.choices or isinstance(error, DrivetrainError):
            raise
        because = f"its step fails, where the program's does not: {first_line(error)}"
        raise PlanError(
            Code.ERROR, str(built.plan), because=because, fix=_FIX
        ) from error


def _read(record: Path | None) -> dict[str, Any]:
    with suppress(OSError, ValueError, TypeError, RecursionError):
        if record is not None:
            return dict(json.loads(record.read_text("utf-8")))
    return {}


def _source(part: Any, above: tuple[Any, ...] = ()) -> str:
    """Returns what a class or function is: its file, place there, and what it uses."""
    try:
        file = inspect.getsourcefile(part)
        content = hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except (OSError, TypeError):
        return repr(part)
    code = getattr(part, "__code__", None)
    if code is None or part in above:
        return repr((file, content, part.__qualname__))
    held = [c.cell_contents for c in part.__closure__ or ()]
    held += used_globals(part).values()
    held += [part.__defaults__, part.__kwdefaults__, getattr(part, "__self__", None)]
    inner = (*above, part)
    shown = [_source(h, inner) if inspect.isfunction(h) else repr(h) for h in held]
    facts = (content, code.co_firstlineno, shown)
    return f"{file} {hashlib.sha256(repr(facts).encode()).hexdigest()}"


def needs_rehearsal(plan: Plan, context: Context) -> bool:
    """Returns whether a plan runs the program otherwise than as written."""
    phases = [find(choice.name).phase for choice in plan.choices]
    return context.world.size > 1 or any(_FIRST <= p <= _LAST for p in phases)


def _rows(size: int, ranks: int, plan: Plan) -> int:
    """Returns how many samples of a batch are enough: few, and as many for each part."""
    parts = ranks
    for choice in plan.choices:
        if find(choice.name).phase is Phase.COMPILE:
            # For another shape it would be compiled, and again for this one.
            return size
        if choice.name == "micro_batch" and isinstance(choice.config["num"], int):
            parts *= choice.config["num"]
    few = max(2, size // (2 * parts)) * parts
    # Ranks know the weights of their uneven parts of a full batch alone.
    return size if few > size or size % ranks else few


def _first(batch: Any, rows: int) -> Any:
    size = batch_size(batch)
    return batch if rows == size else split_batch(batch, [rows, size - rows])[0]
