from drivetrain_elastic._agent._agent import Agent as Agent
from drivetrain_elastic._agent._config import AgentConfig as AgentConfig
from drivetrain_elastic._client._master_client import MasterError as MasterError
from drivetrain_elastic._client._master_client import RefusedError as RefusedError
from drivetrain_elastic._data._sampler import (
    ElasticDistributedSampler as ElasticDistributedSampler,
)
from drivetrain_elastic._data._schedule import Schedule as Schedule
from drivetrain_elastic._data._shard_client import LostLeaseError as LostLeaseError
from drivetrain_elastic._data._shard_client import ShardClient as ShardClient
from drivetrain_elastic._master._master import Master as Master
from drivetrain_elastic._training._batch_scaling import BatchScaling as BatchScaling
from drivetrain_elastic._training._loop import ElasticLoop as ElasticLoop
from drivetrain_elastic._training._step import Step as Step
from drivetrain_elastic._version import __version__ as __version__
