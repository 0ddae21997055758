"""The command `drivetrain-elastic run`: torchrun's options, and an agent."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.commands import UsageError, as_wrong_use, integer, number
from drivetrain_elastic._fit import require_elastic
from drivetrain_elastic._options import address, addresses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_elastic import Agent, AgentConfig
    from drivetrain_elastic._agent._master_process import MasterProcess

__all__ = ["populate_run_parser"]

logger = logging.getLogger(__name__)


def populate_run_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.add_argument(
        "--nproc-per-node",
        "--nproc_per_node",
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
    parser.set_defaults(run=_run)


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


def _run(arguments: argparse.Namespace) -> int:
    # What happens to a job is what its log is for.
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    agent = _agent(arguments)
    code = agent.run()
    if code:
        sys.stderr.write(f"drivetrain-elastic: {agent.reason}\n")
    return code


def _agent(arguments: argparse.Namespace) -> Agent:
    config = _config(arguments)
    endpoint = _endpoint(arguments, os.environ)
    _require_options(arguments, config, endpoint)
    require_elastic(
        arguments.script, is_module=arguments.module, preload=arguments.preload
    )
    # It takes seconds, after which nothing should be left to refuse.
    from drivetrain_elastic import Agent

    program = [arguments.script, *arguments.arguments]
    if endpoint is None:
        return Agent(program, config, is_module=arguments.module)
    from drivetrain_elastic._secret import read_token
    from drivetrain_elastic._tls import channel_credentials

    token = os.environ.get("DRIVETRAIN_ELASTIC_TOKEN")
    master = _master(arguments, endpoint, token) if arguments.journal else None
    if arguments.tls_ca:
        # Workers look for it there.
        os.environ["DRIVETRAIN_ELASTIC_TLS_CA"] = str(Path(arguments.tls_ca).resolve())
    return Agent(
        program,
        config,
        address=endpoint,
        token=read_token(arguments.token_file) if arguments.token_file else token,
        tls=channel_credentials(),
        is_module=arguments.module,
        master=master,
    )


def _require_options(
    arguments: argparse.Namespace, config: AgentConfig, endpoint: str | None
) -> None:
    """Refuses options that lack another one.

    Raises:
        UsageError: One is missing.
        JournalError: The journal's folder is.
    """
    from drivetrain_elastic._address import split_addresses
    from drivetrain_elastic.journal._open import check_journal

    message = ""
    if endpoint is None:
        if arguments.journal or config.max_nodes > 1:
            message = (
                "several nodes, or a journal, need --rdzv-endpoint HOST:PORT; nodes that "
                "keep no journal also take DRIVETRAIN_ELASTIC_MASTER"
            )
    elif arguments.metrics and not arguments.journal:
        message = "--metrics is for the agent that keeps the master: give it --journal"
    elif arguments.journal and "://" in arguments.journal:
        message = (
            "masters whose journal is in Redis are started by `drivetrain-elastic "
            "master`; give --rdzv-endpoint their addresses, with commas"
        )
    elif arguments.journal and arguments.token_file is None:
        message = "a master needs --token-file FILE, which is made when missing"
    elif not arguments.token_file and not os.environ.get("DRIVETRAIN_ELASTIC_TOKEN"):
        message = "the job's token: pass --token-file, or set DRIVETRAIN_ELASTIC_TOKEN"
    elif (arguments.tls_certificate is None) != (arguments.tls_key is None):
        message = "--tls-certificate FILE and --tls-key FILE go together"
    if message:
        raise UsageError(message)
    if endpoint is not None:
        with as_wrong_use(arguments):
            split_addresses(endpoint)
    if arguments.journal:
        check_journal(arguments.journal)


def _master(
    arguments: argparse.Namespace, endpoint: str, token: str | None
) -> MasterProcess:
    """Returns the master that this agent keeps, and makes the token's file."""
    from drivetrain_elastic._agent._master_process import MasterProcess
    from drivetrain_elastic._secret import make_token, write_token

    if not Path(arguments.token_file).exists():
        write_token(arguments.token_file, token or make_token())
    options = ["--journal", arguments.journal]
    if arguments.tls_certificate:
        options += ["--tls-certificate", arguments.tls_certificate]
        options += ["--tls-key", arguments.tls_key]
    if arguments.metrics:
        options += ["--metrics", arguments.metrics]
    return MasterProcess(endpoint, arguments.token_file, options)


def _endpoint(arguments: argparse.Namespace, env: Mapping[str, str]) -> str | None:
    """Returns where the job's master is; None for one of this node alone.

    Args:
        arguments: Of the command.
        env: Of this process.
    """
    if arguments.standalone:
        return None
    # Who keeps the master says itself where that listens: the variable is for all others,
    # and may name several.
    if arguments.rdzv_endpoint is not None or arguments.journal:
        endpoint: str | None = arguments.rdzv_endpoint
        return endpoint
    # A worker's environment has the master of the job that it is a part of.
    if "DRIVETRAIN_ELASTIC_AGENT" in env:
        return None
    found = env.get("DRIVETRAIN_ELASTIC_MASTER")
    if not found:
        return None
    logger.info("the master of this job, by DRIVETRAIN_ELASTIC_MASTER: %s", found)
    return found


def _config(arguments: argparse.Namespace) -> AgentConfig:
    from drivetrain_elastic import AgentConfig

    min_nodes, max_nodes = arguments.nnodes
    optional = {"node": arguments.node} if arguments.node else {}
    names = {
        "num_workers": "--nproc-per-node",
        "num_standbys": "--standbys",
        "max_nodes": "--nnodes",
        "log_folder": "--log-dir",
    }
    with as_wrong_use(arguments, **names):
        return AgentConfig(
            num_workers=arguments.nproc_per_node,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            min_workers=arguments.min_workers,
            workers_per_copy=arguments.workers_per_copy,
            num_standbys=arguments.standbys,
            machine=arguments.machine,
            max_restarts=arguments.max_restarts,
            last_call_s=arguments.last_call_s,
            patience_s=arguments.patience_s,
            frozen_s=arguments.frozen_s,
            stuck_s=arguments.stuck_s,
            on_stuck=arguments.on_stuck,
            on_ended=arguments.on_ended,
            grace_s=arguments.grace_s,
            log_folder=arguments.log_dir,
            tee=arguments.tee,
            preload=tuple(arguments.preload),
            check=arguments.check,
            notices=arguments.notices,
            on_notice=arguments.on_notice,
            notices_s=arguments.notices_s,
            **optional,
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

    num_gpus = torch.cuda.device_count()
    if text == "gpu" and not num_gpus:
        message = "gpu: this machine has none that torch can use"
        raise argparse.ArgumentTypeError(message)
    if text == "cpu" or not num_gpus:
        return os.cpu_count() or 1
    return num_gpus
