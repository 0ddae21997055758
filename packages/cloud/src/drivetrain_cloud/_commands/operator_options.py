"""Options of the command `drivetrain-cloud operator`, and the objects that it writes."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_core import MissingLibraryError
from drivetrain_core.commands import deferred, integer

if TYPE_CHECKING:
    import argparse


def populate_operator_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="whose current context is called; by default KUBECONFIG, then the pod's "
        "account, then ~/.kube/config",
    )
    parser.add_argument(
        "--namespace", default="", metavar="NAME", help="of the jobs; all by default"
    )
    parser.add_argument(
        "--leader-election",
        action="store_true",
        help="of several operators one works; the Lease lies in POD_NAMESPACE",
    )
    parser.add_argument(
        "--parallel",
        type=integer(1),
        default=16,
        metavar="N",
        help="jobs that are looked at together (%(default)s)",
    )
    parser.add_argument(
        "--definitions",
        action="store_true",
        help="write the definitions of the kinds, for `kubectl apply -f -`, and end",
    )
    parser.add_argument(
        "--manifests",
        action="store_true",
        help="write the operator's own objects, for `kubectl apply -f -`, and end",
    )
    parser.add_argument(
        "--training-jobs",
        action="store_true",
        help="look after TrainingJobs, ScaleIns and ScaleOuts of kai.alibabacloud.com as "
        "well; with --definitions or --manifests, write those for them, too",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
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
                "--leader-election]", "--leader-election, --training-jobs]"
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
