"""The agent that the command `drivetrain-elastic run` runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_elastic._agent._agent import Agent
from drivetrain_elastic._agent._master_process import MasterProcess
from drivetrain_elastic._client._tls import channel_credentials
from drivetrain_elastic._client._token import make_token, read_token, write_token

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Runs the agent that the arguments describe, and returns its exit status."""
    agent = agent_of(arguments)
    code = agent.run()
    if code:
        sys.stderr.write(f"drivetrain-elastic: {agent.reason}\n")
    return code


def agent_of(arguments: argparse.Namespace) -> Agent:
    """Returns the agent that the arguments describe.

    Args:
        arguments: Of the command, as `require_arguments` has left them.
    """
    program = [arguments.script, *arguments.arguments]
    if arguments.endpoint is None:
        return Agent(program, arguments.config, is_module=arguments.module)
    token = os.environ.get("DRIVETRAIN_ELASTIC_TOKEN")
    master = _master(arguments, token) if arguments.journal else None
    if arguments.tls_ca:
        # Workers look for it there.
        os.environ["DRIVETRAIN_ELASTIC_TLS_CA"] = str(Path(arguments.tls_ca).resolve())
    return Agent(
        program,
        arguments.config,
        address=arguments.endpoint,
        token=read_token(arguments.token_file) if arguments.token_file else token,
        tls=channel_credentials(),
        is_module=arguments.module,
        master=master,
    )


def _master(arguments: argparse.Namespace, token: str | None) -> MasterProcess:
    """Returns the master that this agent keeps, and makes the token's file."""
    if not Path(arguments.token_file).exists():
        write_token(arguments.token_file, token or make_token())
    options = ["--journal", arguments.journal]
    for name in ("tls_certificate", "tls_key", "metrics"):
        value = getattr(arguments, name)
        if value:
            options += [f"--{name.replace('_', '-')}", value]
    return MasterProcess(arguments.endpoint, arguments.token_file, options)
