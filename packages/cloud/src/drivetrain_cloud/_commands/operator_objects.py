"""The command `drivetrain-cloud operator`, and the objects that it writes."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_core import MissingLibraryError
from drivetrain_core.commands import deferred

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Runs the operator, or writes what a cluster needs for it.

    Args:
        arguments: Of the command.

    Raises:
        MissingLibraryError: A library of the extra is not installed.
    """
    if arguments.definitions or arguments.manifests:
        folders = ["crds"] if arguments.definitions else []
        folders += ["manifests/base"] if arguments.manifests else []
        if arguments.training_jobs:
            folders += ["training_job/crds"] if arguments.definitions else []
            folders += (
                ["manifests/overlays/training-jobs"] if arguments.manifests else []
            )
        text = "---\n".join(_documents(folders))
        if arguments.training_jobs:
            text = text.replace(
                "--leader-election,", "--leader-election, --training-jobs,"
            )
        print(text, end="")
        return 0
    try:
        import aiohttp  # noqa: F401
        import cryptography  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as error:
        message = (
            f"the operator needs {error.name}: "
            'pip install "drivetrain-cloud[kubernetes]"'
        )
        raise MissingLibraryError(message) from error
    return deferred("drivetrain_cloud._commands.operator:run")(arguments)


def _documents(folders: list[str]) -> list[str]:
    found = []
    for folder in folders:
        root = files("drivetrain_cloud.kubernetes").joinpath(folder)
        found += [
            one.read_text()
            for one in sorted(root.iterdir(), key=lambda one: one.name)
            if one.name.endswith(".yaml") and one.name != "kustomization.yaml"
        ]
    return found
