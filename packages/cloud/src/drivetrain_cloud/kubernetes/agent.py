"""What the pod of a worker runs: an agent that knows its job from the environment.

`python -m drivetrain_cloud.kubernetes.agent [OPTIONS] SCRIPT ...` takes the options of
`drivetrain-elastic run`; where the master is, and how many nodes there are, the operator
has put into the environment of the pod.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_core.commands import run_command
from drivetrain_elastic import cli

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def agent_options(env: Mapping[str, str]) -> list[str]:
    """Returns the options that a pod's environment stands for.

    Args:
        env: Of the pod.

    Raises:
        ProgramError: It is not that of a worker's pod.

    Example:
        >>> agent_options({"DRIVETRAIN_ELASTIC_MASTER": "10.0.0.7:29400",
        ...     "DRIVETRAIN_ELASTIC_NNODES": "2:4096", "DRIVETRAIN_ELASTIC_NODE": "a-0"})
        ... # doctest: +NORMALIZE_WHITESPACE
        ['--rdzv-endpoint', '10.0.0.7:29400', '--nnodes', '2:4096', '--node', 'a-0',
         '--on-notice', 'tell', '--patience-s', 'inf', '--last-call-s', '1', '--on-ended',
         'succeed']
    """
    options = []
    for option, name in (
        ("--rdzv-endpoint", "DRIVETRAIN_ELASTIC_MASTER"),
        ("--nnodes", "DRIVETRAIN_ELASTIC_NNODES"),
        ("--node", "DRIVETRAIN_ELASTIC_NODE"),
    ):
        value = env.get(name)
        if not value:
            message = (
                f"{name} is not set: this is run in the pod of an ElasticJob's worker; "
                "elsewhere, use `drivetrain-elastic run`"
            )
            raise ProgramError(message)
        options += [option, value]
    # The operator answers notices, and brings new nodes, whose number nobody knows.
    return [
        *options,
        *("--on-notice", "tell", "--patience-s", "inf", "--last-call-s", "1"),
        # A pod that starts again, or comes late, finds its own job over and no old one.
        *("--on-ended", "succeed"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the agent, and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    return run_command("drivetrain-elastic", _run, argparse.Namespace(given=given))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.given[:1] in (["-h"], ["--help"]):
        return cli.main(["run", "--help"])
    options = agent_options(os.environ)
    authority = os.environ.pop("DRIVETRAIN_ELASTIC_TLS_CA_PEM", "")
    with tempfile.TemporaryDirectory(prefix="drivetrain-agent-") as folder:
        if authority:
            path = Path(folder, "ca.crt")
            path.write_text(authority)
            os.environ["DRIVETRAIN_ELASTIC_TLS_CA"] = str(path)
        return cli.main(["run", *options, *arguments.given])


if __name__ == "__main__":
    sys.exit(main())
