"""Connections to the masters of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import grpc

from drivetrain_cloud.kubernetes.pod_templates import join_address
from drivetrain_cloud.spot.master_job import MasterJob
from drivetrain_elastic.extending import MasterClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain_cloud.kubernetes.job_secret import JobSecret
    from drivetrain_cloud.spot.job_control import JobControl

    # Connects to the training of a job, or returns None where there is nothing.
    Connector = Callable[[Mapping[str, Any], JobSecret], "JobConnection | None"]

_PATIENCE_S = 1.0


class JobConnection(Protocol):
    """A connection to the training of a job."""

    @property
    def control(self) -> JobControl:
        """What the training is asked by."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class MasterConnection:
    """A connection to a job's master, through its service.

    Args:
        secret: Of the job.

    Attributes:
        control: What the training is asked by.
    """

    def __init__(self, secret: JobSecret) -> None:
        self._client = MasterClient(
            join_address(secret.address),
            secret.token,
            patience_s=_PATIENCE_S,
            tls=grpc.ssl_channel_credentials(secret.authority.encode()),
        )
        self.control: JobControl = MasterJob(self._client)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


def connect_master(job: Mapping[str, Any], secret: JobSecret) -> JobConnection:
    """Returns a connection to a job's master."""
    del job
    return MasterConnection(secret)
