"""What scripts know as `horovod.torch.elastic`."""

from __future__ import annotations

from drivetrain_elastic.horovod._errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
)
from drivetrain_elastic.horovod._run import run
from drivetrain_elastic.horovod._sampler import ElasticSampler
from drivetrain_elastic.horovod._state import HostUpdateResult, ObjectState, State
from drivetrain_elastic.horovod._torch_state import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    TorchState,
)

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "run",
]
