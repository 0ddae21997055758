"""The one call: applies a plan that is given, or searches for the fastest one."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drivetrain_core._arguments import check_arguments, check_limits, read_device
from drivetrain_core._build import build
from drivetrain_core._compose import (
    Strategy,
    complete,
    problems,
    read_strategy,
    require_usable,
)
from drivetrain_core._data.cycle import guard_batches
from drivetrain_core._data.loader import undisturbed
from drivetrain_core._data.random_stream import put_random_states, random_states
from drivetrain_core._errors import Code, PlanError, PluginError, ProgramError
from drivetrain_core._layout import agreed_layout
from drivetrain_core._model.meta_model import is_meta_model, move_to
from drivetrain_core._model.snapshot import ModelSnapshot
from drivetrain_core._optimizer.source import OptimizerFactory, OptimizerSource
from drivetrain_core._partial import read_partial
from drivetrain_core._plan import Plan, Rejected
from drivetrain_core._probe import (
    default_device,
    is_lazy_model,
    make_context,
    probe_world,
)
from drivetrain_core._program import (
    ForwardFunction,
    LossFunction,
    Program,
    check_loss_function,
)
from drivetrain_core._ranks import agree, decide, require_same
from drivetrain_core._scripts.overrides import current_overrides
from drivetrain_core._scripts.replay import begin_call, current_script, remember_plan
from drivetrain_core.budget import Budget
from drivetrain_core.numerics.rehearsal import UNCHECKED, Rehearsal, needs_rehearsal
from drivetrain_core.objective import Objective, read_objective
from drivetrain_core.services._cache_folder import cache_folder
from drivetrain_core.services._gloo_exit import wait_for_gloo_at_exit
from drivetrain_core.services._lookup import get_service
from drivetrain_core.services.cluster_spec import ClusterSpec
from drivetrain_core.services.plan_search import SearchRequest

if TYPE_CHECKING:
    import os

    import torch

    from drivetrain_core._accelerated import Accelerated
    from drivetrain_core._context import Context
    from drivetrain_core._model.meta_model import Weights
    from drivetrain_core.services.plan_search import (
        PlanSearch,
        SearchProgress,
        SearchReport,
    )

logger = logging.getLogger(__name__)

_BATCHES = (
    "number of batches in an epoch (pad or cut their parts, as a step waits for all)"
)


def accelerate(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    optimizer: torch.optim.Optimizer | OptimizerFactory,
    data: Iterable[Any],
    loss: LossFunction | None = None,
    *,
    strategy: Strategy = "auto",
    forward: ForwardFunction | None = None,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    max_grad_norm: float | None = None,
    own_loop: bool = False,
    budget: str | float | Mapping[str, float] | Budget = "10m",
    objective: Literal["throughput"] | Objective = "throughput",
    require: Sequence[str | tuple[str, object]] = (),
    allow: Collection[str] | None = None,
    deny: Collection[str] = (),
    changes_algorithm: bool = False,
    cache: bool | str | os.PathLike[str] = True,
    ship: Literal["auto", "pickle", "replay"] = "auto",
    on_error: Literal["raise", "fallback"] = "raise",
    check: bool = True,
    cluster: ClusterSpec | str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    plan_out: str | os.PathLike[str] | None = None,
    progress: bool | SearchProgress = True,
    seed: int = 0,
    weights: Weights | Callable[[torch.nn.Module], object] = "build",
) -> Accelerated:
    """Returns the program made fast: ordinary PyTorch objects, and a step.

    The program is written for a single process. With `strategy="auto"` plans are
    tried in processes of their own, held to the numbers of the program as written,
    and the fastest is applied; the program as written is always a candidate. Any
    other strategy is applied as it stands, or raises before the model is touched.

    Launched with several ranks, every rank calls this; rank 0 decides, and all apply
    the same plan or all raise. Call `init_process_group()` first.

    Args:
        model: A module, or a function without arguments that returns one. A function
            is called anew in each trial, under `seed`; a module travels there.
        optimizer: A function from parameters to an optimizer, or an optimizer on the
            model's parameters (it is rebuilt with its groups and options).
        data: An iterable of global batches: tensors, or tuples, lists, mappings and
            dataclasses of them, whose first dimension is the sample. A `DataLoader` is best: its
            settings are then part of the search, and ranks share its batches.
        loss: Returns the scalar mean loss of (output, batch); None when the model
            returns its own loss.
        strategy: `"auto"`; a list of names and (name, options) pairs; a mapping from
            name to options; a `Plan`; or the path of a plan file. A value may be left
            to the search, which then tries nothing else: `"auto"`, a list of values,
            or options of which some are `"auto"` or lists, as in
            `{"compile": "block", "micro_batch": [2, 4], "precision": "auto"}`.
        forward: Runs the model on a batch. By default a mapping becomes keyword
            arguments, of a tuple or list the first part is the input, and anything
            else is the input.
        scheduler: A function from the optimizer to a learning-rate scheduler; it is
            stepped after each optimizer step.
        max_grad_norm: Clips the gradient to this total norm before each step.
        own_loop: Whether the training loop calls the model itself, instead of
            `train_step`. Plans that must own the step are then ruled out.
        budget: Limits of the search: seconds, a duration such as `"10m"`, or a
            mapping with `seconds`, `trials` and `trial_seconds`.
        objective: What the search maximises: `"throughput"`, or a function from a
            `Measurement` to a positive number, such as `samples_per_cost(cluster)`.
        require: What every plan must hold: names, whose options are left to the
            search, and (name, options) pairs.
        allow: Names of the optimizations to consider; all when None.
        deny: Names of optimizations to leave out.
        changes_algorithm: Whether the search may choose another optimizer and other
            things that change what is learnt.
        cache: Whether to reuse the trials of earlier searches of this program on this
            machine, and checks of plans, or the folder to keep them in;
            `DRIVETRAIN_CACHE_DIR` by default.
        ship: How the program reaches its trials. `pickle` sends its parts; `replay`
            runs the script again up to this call; `auto` sends the parts if that can
            be done.
        on_error: `raise`, or `fallback`: drop an item of a given strategy that cannot
            be used, with a warning, and record it in the plan.
        check: Whether a plan that is given or found is rehearsed before it is applied: two
            steps of it and of the program as written, on a few samples of the first batch,
            must have the same losses, gradients, updates and buffers, within what the plan
            declares. Of one that a search has found, items that are refused are dropped
            with a warning, but for what was required. What was seen stands in the plan as `guard`, with
            `{"checked": False}` where nothing was looked at.
        cluster: A description of the cluster, or its path; it must fit the ranks that
            were launched.
        device: Where to train; this rank's accelerator by default, else the CPU.
        plan_out: Where to write the plan; nowhere when None. A search that measured
            nothing leaves there what an earlier one measured.
        progress: Whether to show the search on standard error, or a
            `SearchProgress`.
        seed: Seeds the weights of a model function and the shuffle across ranks.
        weights: Where the first weights come from. `build`: from the model function,
            on each rank. Otherwise the function is called without memory for
            parameters, so that no process ever holds the whole model, the mesh of the
            strategy is laid, and each rank makes its part alone. `reset`: drawn by the
            model's own `_init_weights` or the modules' `reset_parameters`, from seed
            and names, so that they are the same on any mesh. A function of a module,
            as `nn.Module.apply` takes: drawn by that. `restore`: they are NaN until a
            `Checkpointer` restores `Accelerated.state()`. Such a mesh is planned from
            the flow of data, and not proven on values.

    Returns:
        An `Accelerated`, which unpacks to model, optimizer and loader.

    Raises:
        PlanError: A given strategy cannot be used here, or it trains something else than
            the program. The model is as it was, but for its device.
        ProgramError: The model, data, optimizer or loss is not usable.
        SearchError: The program cannot be measured.
        DistributedError: Ranks disagree, or no process group stands.

    Example:
        >>> from torch import nn, optim, randn
        >>> data = [(randn(4, 2), randn(4, 1)) for _ in range(3)]
        >>> model, optimizer, loader = accelerated = accelerate(
        ...     nn.Linear(2, 1),
        ...     lambda parameters: optim.SGD(parameters, lr=0.1),
        ...     data,
        ...     lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        ...     strategy=[("micro_batch", 2)])
        >>> losses = [accelerated.train_step(batch).item() for batch in loader]
        >>> print(accelerated.plan)
        micro_batch(num=2)
    """
    check_arguments(**locals())
    override = current_overrides()
    strategy = override.strategy_for(strategy)
    budget = override.budget if override.budget is not None else budget
    plan_out = override.plan_out if override.plan_out is not None else plan_out
    call = begin_call()
    limits = Budget.of(budget)
    if plan_out is not None:
        # A search of minutes must not end with a path that was wrong from the start.
        Plan.require_writable(plan_out)
    program = Program(
        model=model,
        optimizer=optimizer,
        data=data,
        loss=loss,
        forward=forward,
        scheduler=scheduler,
        max_grad_norm=max_grad_norm,
        seed=seed,
        weights=weights,
    )
    if override.replay is not None:
        strategy = override.replay.next_call(program, strategy)
    target = read_device(device) if device is not None else default_device()
    world = probe_world()
    wait_for_gloo_at_exit()
    open_ends = read_partial(strategy)
    searches = strategy == "auto" or open_ends is not None
    if searches and weights != "build":
        message = (
            "a search measures the model with its weights, and needs weights='build'; "
            "give a strategy, or search on a machine that holds the model"
        )
        raise ProgramError(message)
    program, module, source, context, batches = agree(
        lambda: _read(
            program, target, cluster, owns_step=not own_loop, searches=searches
        ),
        world,
        "read",
    )
    require_same(context.model.fingerprint, world, "model (by its structure)")
    if context.loop.loader == "sharded":
        require_same(str(length_hint(program.data, -1)), world, _BATCHES)
    root = cache_folder() if cache is True else Path(cache or ".")
    folder = None if cache is False else root / "checked"
    checks = check if override.replay is None else None
    rehearsal = Rehearsal(program, module, source, context, target, batches[0], folder)
    if searches and checks and world.size > 1 and target.type == "cpu":
        # What ranks make of the program is told before a search, where that takes no
        # memory from the trials; what ddp needs for unused parameters, the search finds.
        try:
            rehearsal.check(Plan(choices=complete((), context)), None)
        except PlanError as error:
            if "find_unused_parameters" not in error.because + error.fix:
                raise
    report: SearchReport | None = None

    def find_plan() -> Plan:
        nonlocal report
        if not searches:
            given = read_strategy(strategy)
            if override.strategy is None:  # A command's plan stands as it is.
                check_limits(given, require, deny)
            source = "plan" if isinstance(strategy, Plan) else str(strategy)
            _require_fingerprint(given, context, source)
            return _completed(given, context, on_error)
        request = SearchRequest(
            program=program,
            context=context,
            written=complete((), context),
            batches=tuple(batches),
            device=str(target),
            script=None if ship == "pickle" else current_script(call, override.started),
            must_replay=ship == "replay",
            partial=open_ends,
            require=require,
            allow=allow,
            deny=deny,
            changes_algorithm=changes_algorithm,
            budget=limits,
            objective=read_objective(objective),
            cache=cache,
            progress=progress,
        )
        service: PlanSearch = get_service("plan_search")
        answer: Any = service.search(request)
        # What another package returns is looked at before other ranks are sent it.
        is_pair = isinstance(answer, tuple) and len(answer) == 2
        if not is_pair or not isinstance(answer[0], Plan):
            message = (
                f"{type(service)} returned {answer!r}, and no plan with its report"
            )
            raise PluginError(message)
        found, report = answer
        chosen: Plan = found
        return chosen

    plan = decide(find_plan, world, limits.seconds)
    # What a search has chosen is a proposal, if nothing was asked for.
    may_drop = on_error == "fallback" or (searches and not (open_ends or require))
    while True:
        try:
            plan, accelerated = _applied(rehearsal, plan, checks=checks)
            break
        except PlanError as error:
            if not may_drop:
                raise
            plan = _without(plan, error, context)
    if plan_out is not None and world.rank == 0:
        if searches and not plan.may_replace(plan_out):
            logger.warning("%s keeps what an earlier search measured", plan_out)
        else:
            logger.info("plan written to %s", plan.save(plan_out))
    accelerated.report = report
    remember_plan(call, plan)
    if plan.made.get("device") == context.summary()["device"]:
        accelerated.hold_to_promise()
    if override.on_accelerated is not None:
        override.on_accelerated(accelerated)
    return accelerated


def _read(
    program: Program,
    target: torch.device,
    cluster: ClusterSpec | str | os.PathLike[str] | None,
    *,
    owns_step: bool,
    searches: bool,
) -> tuple[Program, torch.nn.Module, OptimizerSource, Context, list[Any]]:
    """Looks at the data, builds the model, and learns the facts."""
    data, batches = _peek(program.data, searches=searches)
    program = dataclasses.replace(program, data=data)
    module = program.build_model()
    if program.weights == "build" and is_meta_model(module):
        message = (
            f"parameters of {type(module).__name__} are on the meta device and have no "
            "values; give it values first, or pass the function that builds it and "
            "weights='reset' or weights='restore'"
        )
        raise ProgramError(message)
    if is_lazy_model(module):
        message = (
            f"parameters of {type(module).__name__} have no shape yet, as lazy modules "
            "have none before their first batch: call the model on one before this"
        )
        raise ProgramError(message)
    check_loss_function(program.loss, batches[0])
    states, snapshot = random_states(), ModelSnapshot(module, program.optimizer)
    try:
        source = OptimizerSource.of(program.optimizer, module)
    finally:  # A factory is called once more, when the optimizer is built.
        snapshot.restore()
        put_random_states(states)
    if source.needs_closure and (searches or owns_step):
        message = (
            f"{source.kind.__name__} needs a closure, which neither a trial of a search nor "
            "train_step has; pass own_loop=True and a plan, and call "
            "optimizer.step(closure) yourself"
        )
        raise ProgramError(message)
    context = make_context(
        target, module, batches[0], source, data, owns_step=owns_step
    )
    _require_cluster(cluster, context)
    return program, module, source, context, batches


def _applied(
    rehearsal: Rehearsal, plan: Plan, *, checks: bool | None
) -> tuple[Plan, Accelerated]:
    """Returns the program with a plan applied, and the plan with what its check saw.

    Args:
        rehearsal: Checks it; it has the program.
        plan: The plan.
        checks: Whether to check it; None where it was checked, and `guard` stands.

    Raises:
        PlanError: It cannot be, or a step of it is not the program's. The model is as it
            was, but for its device.
    """
    program, module, source = rehearsal.program, rehearsal.module, rehearsal.source
    context, target = rehearsal.context, rehearsal.device
    world = context.world
    # Every rank checks on its own facts before any rank changes its model.
    agree(lambda: require_usable(plan.choices, context), world, "check")
    layout = agreed_layout(program, module, rehearsal.batch, plan.choices, world)
    snapshot = ModelSnapshot(agree(lambda: move_to(module, target), world, "move"))
    try:
        if checks is not None and needs_rehearsal(plan, context):
            seen: Mapping[str, Any] = UNCHECKED
            if checks and program.weights == "build" and not source.needs_closure:
                seen = rehearsal.check(plan, layout)
            plan = dataclasses.replace(plan, guard=plan.guard or seen)
        return plan, build(program, module, source, plan, context, target, layout)
    except BaseException:
        snapshot.restore()
        raise


class _Replayed:
    """Data that can be read once, with the batches that were looked at put back."""

    def __init__(self, seen: list[Any], rest: Iterator[Any]) -> None:
        self._chain = itertools.chain(seen, rest)
        self.kind = type(rest).__name__

    def __iter__(self) -> Iterator[Any]:
        return self._chain


def _peek(data: object, *, searches: bool) -> tuple[Iterable[Any], list[Any]]:
    """Returns the data, nothing lost, and the first batches of it.

    Args:
        data: What the user gave as data.
        searches: Whether batches are needed for trials; one will do otherwise.
    """
    if not isinstance(data, Iterable):
        message = f"data must be an iterable of batches, got {type(data).__name__}"
        if hasattr(data, "__getitem__"):
            message += "; put it in a torch.utils.data.DataLoader, with a batch_size"
        raise ProgramError(message)
    look = guard_batches if searches else partial(guard_batches, most=1)
    if isinstance(data, Iterator):
        seen = look(data)
        return _Replayed(seen, data), seen
    # Looking at the data must not change what the training will draw.
    with undisturbed(data):
        return data, look(data)


def _require_fingerprint(plan: Plan, context: Context, source: str) -> None:
    here = context.fingerprint()
    made_for = plan.fingerprint.get("model")
    if made_for is not None and made_for != here["model"]:
        raise PlanError(
            Code.FINGERPRINT,
            source,
            because=f"it was made for another model (structure {made_for}, this "
            f"{context.model.kind} has {here['model']})",
            fix="search again, or pass only plan.choices",
        )
    batch = plan.fingerprint.get("batch")
    device, found = plan.made.get("device"), context.summary()["device"]
    text = "the plan was made %s %s, %s %s; its speed may differ"
    if batch not in (None, here["batch"]):
        logger.warning(text, "for batches of", batch, "these are", here["batch"])
    if device not in (None, found):
        logger.warning(text, "on", device, "this is", found)


def _completed(plan: Plan, context: Context, on_error: str) -> Plan:
    """Returns the plan with what the world asks for, and without what is dropped.

    One that was named by hand is from here on that of this program.
    """
    plan = dataclasses.replace(
        plan,
        choices=complete(plan.choices, context),
        fingerprint=plan.fingerprint or context.fingerprint(),
    )
    while on_error == "fallback" and (found := problems(plan.choices, context)):
        choice, reject = found[0]
        plan = _without(plan, reject.error(choice.name), context)
    return plan


def _without(plan: Plan, error: PlanError, context: Context) -> Plan:
    """Returns a plan without the choice that an error is about, or else its last one.

    Raises:
        PlanError: The same, where nothing is left to drop.
    """
    named = [c for c in plan.choices if c.name == error.optimization]
    dropped = (named or list(plan.choices[-1:]))[-1:]
    kept = complete([c for c in plan.choices if c not in dropped], context)
    if kept == plan.choices:
        raise error
    logger.warning("%s is dropped: %s", *dropped, error.because)
    rejected = Rejected(
        plan=str(dropped[0]), code=error.code, because=error.because, fix=error.fix
    )
    return dataclasses.replace(
        plan, choices=kept, guard={}, measured={}, rejected=(*plan.rejected, rejected)
    )


def _require_cluster(
    cluster: ClusterSpec | str | os.PathLike[str] | None, context: Context
) -> None:
    if cluster is None:
        return
    spec = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec.load(cluster)
    devices = spec.num_devices
    if context.device.type != "cpu" and devices != context.world.size:
        raise PlanError(
            Code.NEEDS_WORLD,
            "cluster",
            because=f"it describes {devices} devices, {context.world.size} rank(s) run",
            fix="launch one rank a device, or describe the cluster that is there",
        )
