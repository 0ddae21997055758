"""What scripts know as `horovod.torch.elastic`."""

from drivetrain_horovod.on_elastic._errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
)
from drivetrain_horovod.on_elastic._run import run
from drivetrain_horovod.on_elastic._sampler import ElasticSampler
from drivetrain_horovod.on_elastic._state import HostUpdateResult, ObjectState, State
from drivetrain_horovod.on_elastic._torch_state import (
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
