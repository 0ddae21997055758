"""The ways to run a model that are compared, as `candidates.toml` lists them."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core.accelerators import accelerator_of
from drivetrain_kernels._available import compiler_missing
from drivetrain_kernels._errors import SelectionError
from drivetrain_kernels.replacement._replace import replace
from drivetrain_kernels.selector._blocks import repeated_blocks
from drivetrain_kernels.selector._compiled import Compilation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_kernels.replacement._handle import Replacement
    from drivetrain_kernels.selector._workload import Workload

EAGER = "eager"
BACKEND = "backend:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to run a model.

    Args:
        name: As `select(candidates=...)` takes it.
        what: What it does, for tables.
        mode: The mode of Inductor, or None for its default.
        backend: The dynamo backend, or empty to compile nothing.
        blocks: Whether each repeated block is compiled instead of the whole.
        kernels: Whether this package's kernels replace modules first.
        dynamic: As `torch.compile` takes it.
        needs_graphs: Whether only a device that captures graphs can run it, or profits.
        by_name_elsewhere: Whether it can be asked for on other devices.
    """

    name: str
    what: str
    mode: str | None = None
    backend: str = "inductor"
    blocks: bool = False
    kernels: bool = False
    dynamic: bool | None = None
    needs_graphs: bool = False
    by_name_elsewhere: bool = True

    def unfit(self, workload: Workload, *, asked: bool) -> str:
        """Returns why it cannot be tried on a workload, or an empty string.

        Args:
            workload: What would run.
            asked: Whether the user named it.
        """
        device = workload.device
        if self.backend == "inductor" and (missing := compiler_missing(device.type)):
            return missing
        facts = accelerator_of(device).facts(device.index or 0)
        if self.needs_graphs and not facts.graphs:
            if not self.by_name_elsewhere:
                return f"needs a device that captures graphs, got {device.type}"
            if not asked:
                return f"pays on GPUs, got {device.type}; name it to try it"
        if self.blocks and not (workload.module and repeated_blocks(workload.module)):
            return "there are no repeated blocks"
        if self.kernels and workload.module is None:
            return "needs a module, got a function"
        if self.dynamic and not asked and not workload.shapes_vary():
            return "the example batches have one shape"
        return ""


_ROWS = tomllib.loads(files(__package__).joinpath("candidates.toml").read_text("utf-8"))
CANDIDATES = {name: Candidate(name=name, **row) for name, row in _ROWS.items()}


class Installed:
    """A candidate on a workload, that can be switched on and off.

    Args:
        candidate: Which.
        workload: What it runs.
    """

    def __init__(self, candidate: Candidate, workload: Workload) -> None:
        self.candidate = candidate
        self.kernels: Replacement | None = None
        self.compilation: Compilation | None = None
        self.call: Callable[..., Any] = workload.target
        module = workload.module
        if candidate.kernels and module is not None:
            self.kernels = replace(module, "auto")
            self.kernels.undo()
        if candidate.backend:
            parts: Sequence[nn.Module] = [module] if module is not None else []
            if candidate.blocks and module is not None:
                parts = repeated_blocks(module)
            backend = _backend(candidate)
            self.compilation = Compilation(
                workload.target, parts, backend, dynamic=candidate.dynamic
            )
            self.call = self.compilation.call

    @property
    def changes_nothing(self) -> bool:
        """Whether own kernels were to be used, and none fits."""
        return self.kernels is not None and not self.kernels.replaced

    @property
    def num_graphs(self) -> int:
        """The graphs compiled up to now."""
        return 0 if self.compilation is None else self.compilation.log.num_graphs

    def on(self) -> None:
        """Lets calls run this candidate."""
        if self.kernels is not None:
            self.kernels.redo()
        if self.compilation is not None:
            self.compilation.on()

    def off(self) -> None:
        """Lets calls run the target as it was."""
        if self.compilation is not None:
            self.compilation.off()
        if self.kernels is not None:
            self.kernels.undo()


def candidates_for(names: Sequence[str] | None) -> list[Candidate]:
    """Returns the candidates of these names, eager first; all when None.

    Args:
        names: Names of the table, or `backend:NAME` for a registered dynamo backend.

    Raises:
        SelectionError: A name is unknown.

    Example:
        >>> [c.name for c in candidates_for(["block"])]
        ['eager', 'block']
    """
    if names is None:
        return list(CANDIDATES.values())
    if isinstance(names, str):
        message = f"candidates must be a list of names, got {names!r}"
        raise SelectionError(message)
    return [_named(name) for name in dict.fromkeys([EAGER, *names])]


def _named(name: str) -> Candidate:
    if name in CANDIDATES:
        return CANDIDATES[name]
    known = [*CANDIDATES, *(f"{BACKEND}{b}" for b in torch._dynamo.list_backends(()))]
    if name in known:
        backend = name.removeprefix(BACKEND)
        return Candidate(name=name, what=f"dynamo backend {backend}", backend=backend)
    near = difflib.get_close_matches(str(name), known, n=3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    message = (
        f"there is no candidate {name!r}{hint}; the candidates are "
        f"{', '.join(CANDIDATES)}, and {BACKEND}NAME for a dynamo backend"
    )
    raise SelectionError(message)


def _backend(candidate: Candidate) -> Callable[..., Any]:
    """Returns what dynamo calls with (graph, inputs)."""
    found: Callable[..., Any] = torch._dynamo.lookup_backend(candidate.backend)
    if candidate.mode is None:
        return found
    patches = torch._inductor.list_mode_options(candidate.mode)

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return found(graph, inputs, config_patches=patches)

    return compile_graph
