"""Options of the command `drivetrain-elastic run`, which are torchrun's."""

from __future__ import annotations

import argparse
import os

from drivetrain_core.commands import deferred, integer, number
from drivetrain_core.machine_limits import num_cores
from drivetrain_elastic._commands._address_options import address, addresses


def populate_run_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.add_argument(
        "--nproc-per-node",
        "--nproc_per_node",
        dest="num_workers",
        type=_num_workers,
        default="1",
        metavar="N",
        help="workers that train on this node, by default 1; gpu, cpu or auto for one per "
        "device",
    )
    parser.add_argument(
        "--nnodes",
        type=_range,
        default="1:1",
        metavar="MIN:MAX",
        help="how many nodes train, by default 1; the job goes on while there are MIN",
    )
    parser.add_argument(
        "--min-workers",
        type=integer(1),
        metavar="N",
        help="the job goes on while there are so many workers, by default as many as MIN "
        "nodes have",
    )
    parser.add_argument(
        "--node", metavar="NAME", help="this node's name; by default the host's"
    )
    parser.add_argument(
        "--machine",
        default=os.environ.get("DRIVETRAIN_ELASTIC_MACHINE", ""),
        metavar="NAME",
        help="what this node runs on, which is what is excluded when it is faulty; by "
        "default DRIVETRAIN_ELASTIC_MACHINE, or the node's name",
    )
    parser.add_argument(
        "--standbys",
        dest="num_standbys",
        type=integer(0),
        default=1,
        metavar="N",
        help="copies of the model's workers that are ready to take another one's place "
        "(%(default)s)",
    )
    parser.add_argument(
        "--workers-per-copy",
        type=integer(1),
        default=1,
        metavar="N",
        help="workers that hold one copy of the model together (%(default)s)",
    )
    parser.add_argument(
        "--max-restarts",
        "--max_restarts",
        type=integer(0),
        default=10,
        metavar="N",
        help="how many workers may be started anew in one place within an hour "
        "(%(default)s)",
    )
    _add_master_options(parser)
    _add_time_options(parser)
    parser.add_argument(
        "--log-dir",
        "--log_dir",
        dest="log_folder",
        metavar="DIR",
        help="where the output of workers goes; by default it is shown",
    )
    parser.add_argument(
        "--tee", action="store_true", help="show what goes to --log-dir as well"
    )
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that is imported once for all workers; may be given again",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module's name"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the training script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="of the script"
    )
    parser.set_defaults(run=deferred("drivetrain_elastic._commands._run:run"))


def _add_master_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--standalone",
        action="store_true",
        help="one node with a master of its own; the default where no other is named",
    )
    parser.add_argument(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        type=addresses,
        metavar="HOST:PORT",
        help="where the job's master is, or all that may serve, with commas between them; by "
        "default DRIVETRAIN_ELASTIC_MASTER, except with --journal, and in workers of an agent",
    )
    parser.add_argument(
        "--journal",
        metavar="FILE",
        help="keep the master running here, with this journal; a job goes on with it",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the job's token; by default DRIVETRAIN_ELASTIC_TOKEN",
    )
    parser.add_argument(
        "--metrics",
        type=address,
        metavar="HOST:PORT",
        help="where the master that is kept here serves the state of the job, for "
        "Prometheus; needs --journal",
    )
    parser.add_argument("--tls-ca", metavar="FILE", help="who vouches for the master")
    parser.add_argument("--tls-certificate", metavar="FILE", help="of the master")
    parser.add_argument("--tls-key", metavar="FILE", help="of the master")


def _add_time_options(parser: argparse.ArgumentParser) -> None:
    for name, default, least, says in (
        (
            "last-call-s",
            5.0,
            0.0,
            "how long the first world waits for more than MIN nodes",
        ),
        (
            "patience-s",
            600.0,
            0.0,
            "how long a job with too few workers waits for more, and an agent for a master",
        ),
        ("frozen-s", 2.0, 0.2, "how long a worker that does nothing may be silent"),
        ("stuck-s", 600.0, 0.2, "how long a step may compute"),
        ("grace-s", 30.0, 0.0, "how long workers have between SIGTERM and SIGKILL"),
        ("notices-s", 5.0, 0.01, "how often the cloud of --notices is asked"),
    ):
        parser.add_argument(
            f"--{name}",
            type=number(least, can_be_inf=True),
            default=default,
            metavar="SECONDS",
            help=f"{says} (%(default)g)",
        )
    parser.add_argument(
        "--check",
        choices=("start", "suspicion", "always", "never"),
        default="suspicion",
        help="when nodes are checked: before they train, when one is suspected, or both; "
        "one that is faulty is excluded (%(default)s)",
    )
    parser.add_argument(
        "--notices",
        default=os.environ.get("DRIVETRAIN_ELASTIC_NOTICES", "none"),
        metavar="CLOUD",
        help="who says that this node will be taken away: auto, aws, gcp, azure, alibaba, "
        "one of them with the URL of its endpoint (aws=http://127.0.0.1:9000), or none; by "
        "default DRIVETRAIN_ELASTIC_NOTICES, or none",
    )
    parser.add_argument(
        "--on-notice",
        choices=("save", "tell"),
        default="save",
        help="what is done then: a checkpoint is saved and the node leaves in time, or the "
        "master is only told, for a supervisor that decides (%(default)s)",
    )
    parser.add_argument(
        "--on-stuck",
        choices=("kill", "report"),
        default="kill",
        help="what becomes of a worker that is stuck, once all have dumped their stacks",
    )
    parser.add_argument(
        "--on-ended",
        choices=("fail", "succeed"),
        default="fail",
        help="what it is that the job was over before this agent came: an error, or success "
        "if the job has ended well, for a supervisor that starts agents again (%(default)s)",
    )


def _range(text: str) -> tuple[int, int]:
    """Returns the fewest and the most nodes.

    Example:
        >>> _range("2:4"), _range("3")
        ((2, 4), (3, 3))
    """
    first, _, last = text.partition(":")
    fewest, most = integer(1)(first), integer(1)(last or first)
    if fewest > most:
        message = f"MIN must not be more than MAX, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return fewest, most


def _num_workers(text: str) -> int:
    """Returns how many workers a node has."""
    if text not in {"gpu", "cpu", "auto"}:
        try:
            return integer(1)(text)
        except argparse.ArgumentTypeError as error:
            message = f"{error} (or gpu, cpu, auto)"
            raise argparse.ArgumentTypeError(message) from None
    import torch

    num_gpus = torch.accelerator.device_count()
    if text == "gpu" and not num_gpus:
        message = "gpu: this machine has none that torch can use"
        raise argparse.ArgumentTypeError(message)
    if text == "cpu" or not num_gpus:
        return num_cores()
    return num_gpus
