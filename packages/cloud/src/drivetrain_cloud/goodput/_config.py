"""The job that is simulated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.goodput._checks import check_number, check_whole
from drivetrain_cloud.goodput._modes import (
    LLAMA3_MTBF_GPU_H,
    FailureMode,
    usual_failures,
)
from drivetrain_core import ProgramError
from drivetrain_health.failures import ResponseConfig

if TYPE_CHECKING:
    from drivetrain_cloud.goodput._profile import CheckpointPlan, RecoveryProfile
    from drivetrain_core.services import ClusterSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class GoodputConfig:
    """A job, its machines, what fails, and what recovery takes.

    Args:
        num_nodes: That train.
        recovery: What recovery takes.
        checkpoint: When checkpoints are made.
        modes: What fails, and how often; by default as Llama 3's training did.
        devices_per_node: GPUs of one node.
        nodes_per_copy: Nodes that hold one copy of the model together: a copy that lacks
            one stands by.
        min_nodes: With fewer no step is made; by default the nodes of one copy where the
            system can go on with fewer, and else all.
        num_standbys: Nodes that are ready to take a place at once; one that is used up
            comes again when a new one was provided.
        num_spares: Further nodes that can be provided, those under repair left out; None
            for as many as it takes.
        step_s: How long a step takes.
        response: The ladders of the master's decisions.

    Raises:
        ProgramError: A value is out of range, or values contradict each other.

    Example:
        >>> from drivetrain_cloud.goodput import CheckpointPlan, RecoveryProfile
        >>> config = GoodputConfig(
        ...     num_nodes=16,
        ...     recovery=RecoveryProfile(name="mine", restart_s=60.0),
        ...     checkpoint=CheckpointPlan(interval_s=600.0),
        ... )
        >>> config.num_devices
        128
    """

    num_nodes: int
    recovery: RecoveryProfile
    checkpoint: CheckpointPlan
    modes: tuple[FailureMode, ...] = field(default_factory=usual_failures)
    devices_per_node: int = 8
    nodes_per_copy: int = 1
    min_nodes: int | None = None
    num_standbys: int = 0
    num_spares: int | None = None
    step_s: float = 10.0
    response: ResponseConfig = field(default_factory=ResponseConfig)

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in ("num_nodes", "devices_per_node", "nodes_per_copy"):
            check_whole(name, getattr(self, name), least=1)
        check_whole("num_standbys", self.num_standbys)
        if self.num_spares is not None:
            check_whole("num_spares", self.num_spares)
        check_number("step_s", self.step_s, most=1e9)
        if self.step_s == 0:
            message = "step_s must be more than 0, got 0"
            raise ProgramError(message)
        if self.num_nodes % self.nodes_per_copy:
            message = (
                f"num_nodes must be a multiple of nodes_per_copy, got {self.num_nodes} "
                f"and {self.nodes_per_copy}"
            )
            raise ProgramError(message)
        if self.num_standbys > self.num_nodes:
            message = (
                f"num_standbys must not be more than num_nodes, got {self.num_standbys} "
                f"and {self.num_nodes}"
            )
            raise ProgramError(message)
        if self.min_nodes is not None:
            check_whole("min_nodes", self.min_nodes, least=1)
            if self.min_nodes > self.num_nodes:
                message = (
                    f"min_nodes must not be more than num_nodes, got {self.min_nodes} "
                    f"and {self.num_nodes}"
                )
                raise ProgramError(message)
            if self.min_nodes < self.num_nodes and not self.recovery.may_resize:
                message = (
                    f"{self.recovery.name} does not go on with fewer nodes "
                    f"(may_resize), but min_nodes is {self.min_nodes} of "
                    f"{self.num_nodes}"
                )
                raise ProgramError(message)
        names = [mode.name for mode in self.modes]
        if len(set(names)) != len(names):
            message = f"each failure mode needs a name of its own, got {names}"
            raise ProgramError(message)

    @property
    def num_devices(self) -> int:
        """The GPUs that train."""
        return self.num_nodes * self.devices_per_node

    @property
    def fewest_nodes(self) -> int:
        """With fewer nodes no step is made."""
        if self.min_nodes is not None:
            return self.min_nodes
        return self.nodes_per_copy if self.recovery.may_resize else self.num_nodes

    @property
    def failures_per_s(self) -> float:
        """How often anything fails, in failures a second."""
        return sum(
            mode.rate_per_s(
                num_nodes=self.num_nodes, devices_per_node=self.devices_per_node
            )
            for mode in self.modes
        )

    @property
    def mtbf_s(self) -> float:
        """The mean time between failures of the job, in seconds."""
        rate = self.failures_per_s
        return 1.0 / rate if rate else float("inf")

    def rarer(self, factor: float) -> GoodputConfig:
        """Returns the same job with longer times between failures.

        Args:
            factor: How many times as long.
        """
        return replace(self, modes=tuple(mode.rarer(factor) for mode in self.modes))

    @classmethod
    def from_cluster(
        cls,
        spec: ClusterSpec,
        *,
        mtbf_gpu_h: float = LLAMA3_MTBF_GPU_H,
        **options: Any,
    ) -> GoodputConfig:
        """Returns a job that has all nodes of a cluster, but those that stand by.

        Args:
            spec: The cluster; all nodes have as many devices. A switch takes those nodes
                with it that hang on it, where their number is known.
            mtbf_gpu_h: Mean hours of one GPU between interruptions of its job.
            options: The other arguments of the configuration.

        Raises:
            ProgramError: Nodes have different numbers of devices, or none are left.
        """
        counts = {group.devices.count for group in spec.nodes}
        if len(counts) != 1:
            listed = ", ".join(f"{g.name}: {g.devices.count}" for g in spec.nodes)
            message = (
                f"nodes of cluster {spec.name!r} must have the same number of devices to "
                f"train together, got {listed}"
            )
            raise ProgramError(message)
        num_standbys = options.get("num_standbys", 0)
        per_copy = options.get("nodes_per_copy", 1)
        num_nodes = (spec.num_nodes - num_standbys) // per_copy * per_copy
        if num_nodes < 1:
            message = (
                f"cluster {spec.name!r} has {spec.num_nodes} nodes, which is not enough "
                f"for one copy of {per_copy} nodes beside {num_standbys} that stand by"
            )
            raise ProgramError(message)
        usual = usual_failures(mtbf_gpu_h, **_nodes_per_switch(spec))
        return cls(
            num_nodes=num_nodes,
            devices_per_node=counts.pop(),
            **{"modes": usual, **options},
        )


def _nodes_per_switch(spec: ClusterSpec) -> dict[str, int]:
    """Returns how many nodes hang on a switch, if the cluster's description says so."""
    ports = {one.name: one.downlinks for one in spec.switches}
    known = [
        ports[group.switch] // (1 if group.nics.rails else group.nics.count)
        for group in spec.nodes
        if group.switch is not None and group.nics is not None
    ]
    most = max(known, default=0)
    return {"nodes_per_switch": most} if most else {}
