"""The command `drivetrain-elastic run`: refuses what cannot run, and runs an agent."""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from typing import TYPE_CHECKING

from drivetrain_core.commands import UsageError, as_wrong_use, deferred
from drivetrain_elastic._agent._config import AgentConfig
from drivetrain_elastic._agent._require_elastic import require_elastic
from drivetrain_elastic._client._address import split_addresses
from drivetrain_elastic.journal._open import check_journal

if TYPE_CHECKING:
    import argparse

logger = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    # What happens to a job is what its log is for.
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    require_arguments(arguments)
    # It takes seconds to import, after which nothing should be left to refuse.
    return deferred("drivetrain_elastic._commands._run_agent:run")(arguments)


def require_arguments(arguments: argparse.Namespace) -> None:
    """Refuses arguments with which no agent can run, and adds what they mean to them.

    Args:
        arguments: Of the command. They get `config`, of the agent, and `endpoint`, where
            the job's master is.

    Raises:
        DrivetrainError: Something is wrong, or missing.
    """
    arguments.config = _config(arguments)
    arguments.endpoint = _endpoint(arguments)
    _require_options(arguments)
    require_elastic(
        arguments.script, is_module=arguments.module, preload=arguments.preload
    )


def _require_options(arguments: argparse.Namespace) -> None:
    """Refuses options that lack another one.

    Raises:
        UsageError: One is missing.
        JournalError: The journal's folder is.
    """
    endpoint, message = arguments.endpoint, ""
    if endpoint is None:
        if arguments.journal or arguments.config.max_nodes > 1:
            message = (
                "several nodes, or a journal, need --rdzv-endpoint HOST:PORT; nodes that "
                "keep no journal also take DRIVETRAIN_ELASTIC_MASTER"
            )
        # Of a master that others reach; this node's own has none of these.
        names = ("rdzv_endpoint", "metrics", "token_file", "tls_ca", "tls_certificate")
        if found := [name for name in (*names, "tls_key") if getattr(arguments, name)]:
            message = message or (
                f"--{found[0].replace('_', '-')} is for a job with --rdzv-endpoint "
                "HOST:PORT and without --standalone: the master of this one node has none"
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


def _endpoint(arguments: argparse.Namespace) -> str | None:
    """Returns where the job's master is; None for one of this node alone."""
    if arguments.standalone:
        return None
    # Who keeps the master says itself where that listens: the variable is for all others,
    # and may name several.
    if arguments.rdzv_endpoint is not None or arguments.journal:
        endpoint: str | None = arguments.rdzv_endpoint
        return endpoint
    found = os.environ.get("DRIVETRAIN_ELASTIC_MASTER")
    # A worker's environment has the master of the job that it is a part of.
    if not found or "DRIVETRAIN_ELASTIC_AGENT" in os.environ:
        return None
    logger.info("the master of this job, by DRIVETRAIN_ELASTIC_MASTER: %s", found)
    return found


def _config(arguments: argparse.Namespace) -> AgentConfig:
    names = {one.name for one in fields(AgentConfig)}
    given = {
        name: value
        for name, value in vars(arguments).items()
        if name in names and value is not None
    }
    if not arguments.node:
        given.pop("node", None)
    given["preload"] = tuple(arguments.preload)
    given["min_nodes"], given["max_nodes"] = arguments.nnodes
    with as_wrong_use(arguments, max_nodes="--nnodes"):
        return AgentConfig(**given)
