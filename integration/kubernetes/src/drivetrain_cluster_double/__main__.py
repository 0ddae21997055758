"""Runs a cluster until it is interrupted: `python -m drivetrain_cluster_double`."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from pathlib import Path

from drivetrain_cluster_double.cluster import ClusterDouble
from drivetrain_core import DrivetrainError
from drivetrain_core.commands import CommandParser, integer


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    parser = CommandParser(
        prog="python -m drivetrain_cluster_double",
        description="A double of a Kubernetes cluster, until Ctrl-C or SIGTERM.",
    )
    parser.add_argument(
        "--nodes", type=integer(1), default=1, help="how many nodes it has (1)"
    )
    parser.add_argument(
        "--port", type=integer(0, 65_535), default=0, help="of the API (any)"
    )
    parser.add_argument(
        "--run",
        choices=["processes", "simulated"],
        default="processes",
        help="whether pods are processes, or only say that they run",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, help="also write the configuration of clients here"
    )
    options = parser.parse_args(arguments)
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    try:
        with ClusterDouble(
            options.nodes, run=options.run, port=options.port
        ) as cluster:
            file = cluster.kubeconfig
            if options.kubeconfig is not None:
                options.kubeconfig.touch(mode=0o600)
                file = Path(shutil.copy(file, options.kubeconfig))
            sys.stdout.write(f"export KUBECONFIG={file}\n")
            sys.stdout.flush()
            done.wait()
    except (DrivetrainError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
