"""The command `drivetrain-cloud operator`: looks after the ElasticJobs of a cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.api_client import ApiClient
from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess
from drivetrain_cloud.kubernetes.health_server import HealthServer
from drivetrain_cloud.kubernetes.leader_election import LeaderElection
from drivetrain_cloud.kubernetes.operator import Operator
from drivetrain_cloud.kubernetes.serve import serve
from drivetrain_cloud.kubernetes.training_job.controller import TrainingJobController

if TYPE_CHECKING:
    import argparse

    from drivetrain_cloud.kubernetes.control_loop import ControlLoop


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

            client.lead_s = election.left_s
        options: dict[str, Any] = {
            "namespace": arguments.namespace,
            "num_workers": arguments.parallel,
        }
        loops: list[ControlLoop] = [Operator(client, **options)]
        if arguments.training_jobs:
            loops.append(TrainingJobController(client, **options))

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                for loop in loops:
                    group.create_task(loop.run())

        async with AsyncExitStack() as stack:
            if arguments.health_port is not None:
                port, leads = arguments.health_port, lambda: client.lead_s() > 0
                server = HealthServer(port, client, loops, leads)
                await stack.enter_async_context(server)
            return await serve(work, election, ending)
