"""The facts that a plan is judged against: device, model, batch, loop and world.

Pure data: no device is touched here. `_probe` fills it in.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core.accelerators.facts import AcceleratorFacts

if TYPE_CHECKING:
    from drivetrain_core._measurement import Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFacts(AcceleratorFacts):
    """One device of the kind that the model trains on, and the CPU beside it.

    Args:
        num_cores: CPU cores that this process may run on.
        num_threads: Threads that torch uses for one operator.
    """

    num_cores: int
    num_threads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFacts:
    """The repeated blocks of a model, such as the layers of a transformer.

    Args:
        container: The name of the list that holds them.
        kind: Their class.
        count: How many there are.
        before: How many other modules stand before them in the list.
    """

    container: str
    kind: str
    count: int
    before: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What is known of the model without running it.

    Args:
        kind: Its class.
        fingerprint: A hash of its structure: names, shapes, dtypes and classes.
        num_parameters: Trainable and frozen values, tied ones once.
        parameter_bytes: What they occupy.
        dtypes: Their dtypes, sorted.
        blocks: The repeated blocks, if any.
        has_conv2d: Whether channels-last could matter.
        has_batch_norm: Whether statistics depend on the micro-batch.
        tied: Groups of names that share one parameter.
    """

    kind: str
    fingerprint: str
    num_parameters: int
    parameter_bytes: int
    dtypes: tuple[str, ...]
    blocks: BlockFacts | None = None
    has_conv2d: bool = False
    has_batch_norm: bool = False
    tied: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFacts:
    """One global batch, as the user's loader gives it.

    Args:
        size: Samples in it.
        signature: Structure, shapes without the batch, and dtypes, as a string.
        num_tokens: Tokens in it, when it holds integer sequences.
    """

    size: int
    signature: str
    num_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopFacts:
    """How the user's loop is built, which decides what can be changed.

    Args:
        owns_step: Whether the user drives training through `train_step`.
        optimizer: The optimizer's class name, empty when there is none.
        optimizer_options: The names of its options, such as `fused`.
        loader: `torch` for a plain `DataLoader` that can be rebuilt, `indexed` for one
            with a sampler of its own, `sharded` for one that splits the data over ranks
            already (its sampler has `num_replicas`), else `iterable`.
        loader_workers: Worker processes of the loader.
        open_handle: The type of an open file or connection that the data set holds.
        sample_on_host: Whether batches come from host memory.
    """

    owns_step: bool = True
    optimizer: str = ""
    optimizer_options: frozenset[str] = frozenset()
    loader: str = "iterable"
    loader_workers: int = 0
    open_handle: str = ""
    sample_on_host: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldFacts:
    """The processes of the job.

    Args:
        size: Ranks in all.
        rank: This one.
        local_size: Ranks on this node.
    """

    size: int = 1
    rank: int = 0
    local_size: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """All facts together; what `configs`, `check` and `estimate` are given.

    Args:
        device: The device.
        model: The model.
        batch: A global batch.
        loop: The user's loop.
        world: The ranks.
        baseline: How the user's own program ran, once that was measured.
    """

    device: DeviceFacts
    model: ModelFacts
    batch: BatchFacts
    loop: LoopFacts
    world: WorldFacts
    baseline: Measurement | None = None

    def with_baseline(self, baseline: Measurement) -> Context:
        """Returns these facts with the baseline's measurement."""
        return dataclasses.replace(self, baseline=baseline)

    @property
    def local_batch(self) -> int:
        """Samples that one rank sees in a step, rounded down."""
        return self.batch.size // self.world.size

    def fingerprint(self) -> dict[str, str]:
        """Returns what a plan is bound to: the structures of model and batch.

        The number of ranks is no part of it: a plan may be applied to another one.
        """
        return {"model": self.model.fingerprint, "batch": self.batch.signature}

    def summary(self) -> dict[str, Any]:
        """Returns the facts that a plan file records under `made`."""
        world = f" x{self.world.size}" if self.world.size > 1 else ""
        return {"device": f"{self.device.name}{world}", "world": self.world.size}
