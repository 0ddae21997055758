"""What the pod of a master runs: a master that knows its job from the environment."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_cloud.kubernetes.pod_templates import join_address
from drivetrain_core import ProgramError
from drivetrain_core.commands import run_command
from drivetrain_elastic import cli
from drivetrain_elastic.extending import write_token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_JOURNAL = "DRIVETRAIN_ELASTIC_JOURNAL"


def master_options(env: Mapping[str, str], folder: Path) -> list[str]:
    """Writes what a master reads from files, and returns its options.

    Args:
        env: Of the pod.
        folder: A private one.

    Raises:
        ProgramError: The environment is not that of a master's pod.
    """
    names = {
        "token": "DRIVETRAIN_ELASTIC_TOKEN",
        "tls.crt": "DRIVETRAIN_ELASTIC_TLS_CERTIFICATE_PEM",
        "tls.key": "DRIVETRAIN_ELASTIC_TLS_KEY_PEM",
    }
    missing = [
        name
        for name in ("DRIVETRAIN_POD_IP", _JOURNAL, *names.values())
        if not env.get(name)
    ]
    if missing:
        message = (
            f"{', '.join(missing)} not set: this is run in the pod of an ElasticJob's "
            "master; elsewhere, use `drivetrain-elastic master`"
        )
        raise ProgramError(message)
    for file, name in names.items():
        write_token(folder / file, env[name])
    return [
        *("--address", join_address(env["DRIVETRAIN_POD_IP"])),
        *("--token-file", str(folder / "token")),
        *("--tls-certificate", str(folder / "tls.crt")),
        *("--tls-key", str(folder / "tls.key")),
        *("--journal", env[_JOURNAL]),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the master, and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    return run_command("drivetrain-elastic", _run, argparse.Namespace(given=given))


def _run(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="drivetrain-master-") as folder:
        options = master_options(os.environ, Path(folder))
        return cli.main(["master", *options, *arguments.given])


if __name__ == "__main__":
    sys.exit(main())
