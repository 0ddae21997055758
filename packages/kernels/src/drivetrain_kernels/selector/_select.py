"""`select`: probes, verifies, times, decides, and commits to the fastest way to run."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from drivetrain_core.services import cache_folder
from drivetrain_kernels._errors import SelectionError
from drivetrain_kernels.selector._candidates import EAGER, Installed, candidates_for
from drivetrain_kernels.selector._ranks import agreed_text
from drivetrain_kernels.selector._search import Search
from drivetrain_kernels.selector._state_snapshot import state_snapshot
from drivetrain_kernels.selector._store import Record, load, save
from drivetrain_kernels.selector._table import table
from drivetrain_kernels.selector._watch import Watch
from drivetrain_kernels.selector._workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import distributed as dist

    from drivetrain_kernels.selector._compiled import Compilation
    from drivetrain_kernels.selector._decide import Trial

logger = logging.getLogger(__name__)

# After the commit a loop may still meet a last, smaller batch and an evaluation. Dynamo
# itself goes eager for good at the eighth version of a function, without a word.
_MORE_GRAPHS = 4
_TIMES_GRAPHS = 2


@dataclass(frozen=True, kw_only=True)
class Selected:
    """What was chosen; `str` gives the table that explains it.

    Args:
        call: What to run from now on. Of a module it is the module itself, compiled
            in place or untouched; of a function the function itself when eager won.
        choice: The name of the candidate.
        reason: Why it.
        trials: What was measured, eager first.
        verdicts: By candidate, what was decided on it.
        seconds: How long the decision took.
        from_cache: Whether an earlier job had decided.
        watch: Follows the steps of the loop; None where eager was chosen.
        undo: Puts the target back as it was.
    """

    call: Any
    choice: str
    reason: str
    trials: tuple[Trial, ...]
    verdicts: dict[str, str]
    seconds: float
    from_cache: bool
    watch: Watch | None
    undo: Callable[[], None]

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Watches step times: after each step of an optimizer a clock is read.

        Where eager was chosen there is nothing to watch, and nothing happens.

        Args:
            optimizer: The one that the loop steps once a training step.
        """
        if self.watch is not None:
            self.watch.follow(optimizer)

    def __str__(self) -> str:
        """Returns the table of candidates, and the reason below it."""
        kept = " (decided by an earlier job)" if self.from_cache else ""
        lines = table(self.trials, self.verdicts, self.choice)
        return f"{lines}\n{self.reason}; decided in {self.seconds:.1f} s{kept}"


def select(
    target: Callable[..., Any],
    example_batches: Sequence[Any],
    *,
    budget_s: float = 120.0,
    remaining_steps: int | None = None,
    candidates: Sequence[str] | None = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    step: Callable[[Callable[..., Any], Any], torch.Tensor] | None = None,
    tolerance: float | None = None,
    group: dist.ProcessGroup | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Selected:
    """Chooses the fastest of eager and several ways to compile, by measurement.

    Each candidate is compiled by running steps of forward, loss and backward, checked
    against eager's loss and gradients, and timed in turns with eager. The fastest that
    surely beats eager by 2 % is kept; else the target stays as it is, without any
    wrapper. Whatever a compiler raises is recorded in the table and never leaves.
    Parameters, buffers, gradients, attributes, lists and mappings, generators and random
    states are as before. A step that changes parameters or its batch is refused.

    Args:
        target: A module or function, not compiled, and not yet wrapped for several
            devices.
        example_batches: What it is called with; several if their shapes differ. See
            `loss` and `step` for how they are passed.
        budget_s: The seconds to decide in. No compilation begins that is not expected
            to end in it; one that has begun is not interrupted.
        remaining_steps: The steps left to train; a candidate must save more in them
            than it takes to compile. None when unknown: then it may.
        candidates: Names of those to compare with eager: "block", "default",
            "dynamic", "kernels", "kernels+block", "cudagraphs", "max-autotune", or
            "backend:NAME". None for those that could pay here.
        loss: Returns the scalar loss of (output, batch); a batch that is a tuple then
            begins with the input. Without it a tuple holds all arguments.
        step: Returns the scalar loss of (callable, batch), if the above do not do. It
            must not step an optimizer.
        tolerance: The largest relative error of loss and gradients. None for a few
            times eager's own rounding error.
        group: The ranks that have to decide alike; all of them call. The slowest
            rank's times count.
        cache: Whether to keep the decision on disk, under `DRIVETRAIN_CACHE_DIR`, and
            to take one that is there.
        progress: Called with a line of text at each stage.

    Returns:
        The choice, with the table that explains it.

    Raises:
        SelectionError: The target cannot be run as it is, is compiled or wrapped
            already, or an argument is not allowed.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 8)
        >>> selected = select(model, [torch.ones(2, 8)], candidates=[], cache=False)
        >>> selected.choice, selected.call is model
        ('eager', True)
    """
    search = Search(
        workload=Workload(target, example_batches, loss=loss, step=step),
        named=candidates is not None,
        deadline=time.monotonic() + _require_positive("budget_s", budget_s),
        budget_s=budget_s,
        remaining_steps=remaining_steps,
        tolerance=tolerance,
        group=group,
        progress=progress or logger.info,
    )
    _require_plain(target)
    search.workload.require_repeatable()
    asked = candidates_for(candidates)
    folder = cache_folder() / "select"
    key = search.key([c.name for c in asked])
    kept = load(folder, key) if cache else None
    text = agreed_text(kept.to_json() if kept else "", group).strip()
    found = Record.from_json(text) if text else None
    started = time.monotonic()
    with state_snapshot(search.workload):
        record, chosen = search.repeat(found) if found else search.run(asked)
    if cache and found is None:
        save(folder, key, record)
    selected = _commit(
        target, record, chosen, time.monotonic() - started, found is not None
    )
    search.progress(selected.reason)
    return selected


def _commit(
    target: Callable[..., Any],
    record: Record,
    chosen: Installed | None,
    seconds: float,
    from_cache: bool,
) -> Selected:
    """Switches the choice on; where eager won there is nothing to switch."""
    call: Any = target
    watch, undo = None, _nothing
    if chosen is not None and record.choice != EAGER:
        watch = Watch(chosen.on, chosen.off)
        if chosen.compilation is not None:
            _guard(chosen.compilation, watch)
        chosen.on()
        call, undo = chosen.call, watch.stop
    return Selected(
        call=call,
        choice=record.choice,
        reason=record.reason,
        trials=tuple(record.trials),
        verdicts=record.verdicts,
        seconds=seconds,
        from_cache=from_cache,
        watch=watch,
        undo=undo,
    )


def _guard(compilation: Compilation, watch: Watch) -> None:
    """Lets a compilation that recompiles too often, or fails, end in eager."""
    log = compilation.log
    more = max(_MORE_GRAPHS, _TIMES_GRAPHS * log.num_graphs)
    compilation.commit(log.num_graphs + more, lambda: watch.demote(log.demoted))


def _nothing() -> None:
    """Undoes nothing."""


def _require_plain(target: Callable[..., Any]) -> None:
    """Raises unless a target is neither compiled nor wrapped."""
    if not isinstance(target, nn.Module):
        if hasattr(target, "_torchdynamo_orig_callable"):
            message = (
                "select() takes a function that is not compiled; pass the plain one"
            )
            raise SelectionError(message)
        return
    for name, module in target.named_modules():
        kind = type(module).__name__
        where = f"its part {name!r}" if name else "it"
        if kind == "OptimizedModule" or module._compiled_call_impl is not None:
            message = f"select() takes a module that is not compiled; {where} is"
            raise SelectionError(message)
        if kind in {"DistributedDataParallel", "FullyShardedDataParallel"} or hasattr(
            module, "_get_fsdp_state"
        ):
            message = (
                f"select() comes before {kind}, whose gradients would be exchanged as "
                f"steps are tried; {where} is wrapped already"
            )
            raise SelectionError(message)


def _require_positive(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0:
        message = f"{name} must be a number > 0, got {value!r}"
        raise SelectionError(message)
    return float(value)
