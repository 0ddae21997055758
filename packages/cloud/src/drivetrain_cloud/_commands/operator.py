"""The command `drivetrain-cloud operator`: looks after the ElasticJobs of a cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.api_client import ApiClient
from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
from drivetrain_cloud.kubernetes.leader_election import LeaderElection
from drivetrain_cloud.kubernetes.operator import Operator
from drivetrain_cloud.kubernetes.serve import serve
from drivetrain_cloud.kubernetes.training_job.controller import TrainingJobController

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Runs the operator until a signal ends it, and returns the exit status."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    return asyncio.run(_operate(arguments))


async def _operate(arguments: argparse.Namespace) -> int:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with ApiClient(ClusterAccess(arguments.kubeconfig)) as client:
        election = None
        if arguments.leader_election:
            election = LeaderElection(
                client,
                namespace=os.environ.get("POD_NAMESPACE", "default"),
                identity=os.environ.get("POD_NAME")
                or f"{socket.gethostname()}-{os.getpid()}",
            )

        async def work() -> None:
            options: dict[str, Any] = {
                "namespace": arguments.namespace,
                "num_workers": arguments.parallel,
            }
            async with asyncio.TaskGroup() as group:
                group.create_task(Operator(client, **options).run())
                if arguments.training_jobs:
                    group.create_task(TrainingJobController(client, **options).run())

        return await serve(work, election, ending)
