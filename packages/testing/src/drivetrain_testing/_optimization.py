"""The contract of an optimization: does it do what the protocol promises?"""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import (
    Choice,
    Config,
    DrivetrainError,
    Numerics,
    Ok,
    Optimization,
    Phase,
    Plan,
    PlanError,
    Reject,
    Slot,
    register,
    unregister,
)
from drivetrain_core.extending import (
    OptimizerSource,
    Program,
    build,
    complete,
    find,
    make_context,
    numerics_of,
    require_usable,
)
from drivetrain_core.numerics.guard import compare
from drivetrain_core.numerics.observe import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_core import Accelerated, Context

_METHODS = ("numerics", "normalize", "configs", "check", "estimate", "apply")


class ToyModel(nn.Module):
    """A convolution, repeated blocks, and a head: something for most slots to find."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.inside = nn.Linear(4 * 16, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3)
        )
        self.head = nn.Linear(32, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.inside(torch.relu(self.stem(images)).flatten(1))
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def toy_program() -> Program:
    """Returns a small classification program; the same at each call."""
    generator = torch.Generator().manual_seed(1)
    batches = [
        (
            torch.randn(8, 1, 4, 4, generator=generator),
            torch.randint(0, 5, (8,), generator=generator),
        )
        for _ in range(4)
    ]
    return Program(
        model=ToyModel,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        data=batches,
        loss=lambda output, batch: nn.functional.cross_entropy(output, batch[1]),
    )


def toy_context(program: Program, device: torch.device | None = None) -> Context:
    """Returns the facts of `toy_program` on a device, the CPU by default."""
    model = program.build_model()
    source = OptimizerSource.of(program.optimizer, model)
    batch = next(iter(program.data))
    target = device or torch.device("cpu")
    return make_context(target, model, batch, source, program.data, owns_step=True)


def check_optimization(
    optimization: Optimization,
    *,
    config: Config | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """Raises unless an optimization keeps the contract on this machine.

    It is asked for its answers, applied to a small program, and the program is
    observed: the losses, the gradient of every parameter, and whether every parameter
    trains, against the program as written and within the bounds of what the
    optimization declares to do to the numbers. With ranks launched, call it on every
    rank.

    Args:
        optimization: The optimization.
        config: Also check this configuration, besides those that it proposes.
        device: Where to apply it.

    Raises:
        AssertionError: A clause is broken; the message says which.

    Example:
        >>> from drivetrain_core.extending import find
        >>> check_optimization(find("micro_batch"))
    """
    target = torch.device(device)
    with _Findable(optimization):
        _check_attributes(optimization)
        program = toy_program()
        context = toy_context(program, target)
        for chosen in _configs(optimization, context, config):
            _check_pure(optimization, context, chosen)
            _check_applied(optimization, context, chosen, target)


class _Findable:
    """Registers an optimization inside, unless its name is known already."""

    def __init__(self, optimization: Optimization) -> None:
        self.optimization = optimization
        self.ours = False

    def __enter__(self) -> None:
        try:
            find(self.optimization.name)
        except DrivetrainError:
            register(self.optimization)
            self.ours = True

    def __exit__(self, *_: object) -> None:
        if self.ours:
            unregister(self.optimization.name)


def _check_attributes(optimization: Optimization) -> None:
    _clause(
        isinstance(optimization, Optimization),
        "it must have the attributes and methods of drivetrain_core.Optimization",
    )
    _clause(
        bool(optimization.name) and type(optimization.name) is str,
        f"name must be a text, got {optimization.name!r}",
    )
    _clause(
        isinstance(optimization.slot, Slot),
        f"slot must be a Slot, got {optimization.slot!r}",
    )
    _clause(
        isinstance(optimization.phase, Phase),
        f"phase must be a Phase, got {optimization.phase!r}",
    )
    for method in _METHODS:
        _clause(
            callable(getattr(optimization, method, None)), f"{method} must be callable"
        )
    clone = pickle.loads(pickle.dumps(optimization))
    _clause(
        clone.name == optimization.name,
        "it must survive pickling: trials run in processes of their own",
    )


def _configs(
    optimization: Optimization, context: Context, extra: Config | None
) -> Iterator[Config]:
    proposed = list(optimization.configs(context))
    _clause(
        proposed == list(optimization.configs(context)),
        "configs must return the same for the same context",
    )
    if extra is not None:
        proposed.append(extra)
    for config in proposed:
        full = optimization.normalize(config)
        _clause(
            optimization.normalize(full) == full,
            f"normalize must leave a full configuration as it is, got {full}",
        )
        _clause(
            all(isinstance(v, str | int | float | bool | None) for v in full.values()),
            f"a configuration holds only what YAML can write, got {full}",
        )
        plan = Plan(choices=(Choice(optimization.name, full),))
        again = Plan.from_yaml(plan.to_yaml())
        _clause(
            again.choices == plan.choices,
            f"a configuration must survive a plan file, {full} came back otherwise",
        )
        yield full
    _check_unknown_option(optimization)


def _check_unknown_option(optimization: Optimization) -> None:
    try:
        optimization.normalize({"no such option": 1})
    except PlanError:
        return
    except Exception as error:
        message = f"an unknown option must raise a PlanError, got {error!r}"
        raise AssertionError(message) from error
    message = "an unknown option must raise a PlanError, and was accepted"
    raise AssertionError(message)


def _check_pure(optimization: Optimization, context: Context, config: Config) -> None:
    choice = Choice(optimization.name, config)
    before = copy.deepcopy(dict(config))
    first = optimization.check(context, config, (choice,))
    _clause(
        isinstance(first, Ok | Reject), f"check must return Ok or Reject, got {first!r}"
    )
    _clause(
        first == optimization.check(context, config, (choice,)),
        "check must return the same for the same arguments",
    )
    if isinstance(first, Reject):
        _clause(bool(first.because), "a Reject must say why")
    optimization.estimate(context, config, (choice,))
    _clause(dict(config) == before, "check and estimate must not change the config")
    _clause(
        isinstance(optimization.numerics(config), Numerics),
        "numerics must return a Numerics",
    )


def _check_applied(
    optimization: Optimization, context: Context, config: Config, device: torch.device
) -> None:
    choices = complete((Choice(optimization.name, config),), context)
    try:
        require_usable(choices, context)
    except PlanError:
        return  # It said that it cannot be used here, which is an answer.
    before = _global_settings()
    plain = _built(complete((), context), context, device)
    changed = _built(choices, context, device)
    try:
        expected = {n: tuple(p.shape) for n, p in plain.module.named_parameters()}
        found = {n: tuple(p.shape) for n, p in changed.module.named_parameters()}
        _clause(
            found == expected,
            f"apply must keep names and global shapes of the parameters, differing: "
            f"{sorted(set(found.items()) ^ set(expected.items()))[:3]}",
        )
        with warnings.catch_warnings():
            # Dynamo looks for gradients of what one compiled block hands to the next.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is")
            _check_behaviour(plain, changed, choices)
            _check_state_dict(changed)
    finally:
        changed.close()
        plain.close()
    _clause(
        _global_settings() == before,
        "apply must put into state.undo what restores the global settings it changed",
    )


def _global_settings() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _built(
    choices: tuple[Choice, ...], context: Context, device: torch.device
) -> Accelerated:
    program = toy_program()
    model = program.build_model()
    source = OptimizerSource.of(program.optimizer, model)
    return build(program, model, source, Plan(choices=choices), context, device)


def _check_behaviour(
    plain: Accelerated, changed: Accelerated, choices: tuple[Choice, ...]
) -> None:
    def watch(accelerated: Accelerated) -> Any:
        batches = list(accelerated.loader)[:3]
        return observe(accelerated, batches, seed=0)

    verdict = compare(watch(plain), watch(changed), numerics_of(choices))
    reason = verdict.because if isinstance(verdict, Reject) else ""
    _clause(not reason, f"it changes what is learnt beyond what it declares: {reason}")


def _check_state_dict(accelerated: Accelerated) -> None:
    _must_load(lambda: accelerated.load_state_dict(accelerated.state_dict()))
    batch = next(iter(accelerated.loader))
    loss = accelerated.train_step(batch)
    _clause(
        bool(torch.isfinite(loss)), "training must go on after a state dict round trip"
    )


def _must_load(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        message = f"state_dict must load again under the same plan, got {error!r}"
        raise AssertionError(message) from error


def _clause(holds: bool, rule: str) -> None:
    if not holds:
        raise AssertionError(rule)
