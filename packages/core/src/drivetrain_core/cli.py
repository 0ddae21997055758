"""The command `drivetrain`, and the mount point of other packages' commands."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections import Counter
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

from drivetrain_core._errors import PluginError, ProgramError
from drivetrain_core._plugins import COMMANDS, installed, load_plugin
from drivetrain_core.commands import add_version, busy, run_program
from drivetrain_core.simulate.command import populate_simulate_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main", "populate_parser"]


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds core's commands, and those of the packages that are installed."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    search = _add(commands, "search", "search a plan for a script", _search)
    search.add_argument(
        "--budget",
        type=_budget,
        help="such as 90s, 10m or 1h (default: the script's own)",
    )
    search.add_argument(
        "--plan",
        default="drivetrain_plan.yaml",
        help="where to write the plan (default: %(default)s)",
    )
    search.add_argument("--json", action="store_true", help="print the report as JSON")
    search.add_argument(
        "--picture", type=_png, help="where to draw the trials, as .png"
    )
    search.add_argument(
        "--html", metavar="PATH", help="where to write the report, as one HTML page"
    )
    _add_script(search)
    apply = _add(commands, "apply", "run a script under a plan", _apply)
    apply.add_argument("plan", help="a plan file")
    _add_script(apply)
    explain = _add(commands, "explain", "say what a plan does and why", _explain)
    explain.add_argument("plan", help="a plan file")
    explain.add_argument("--json", action="store_true", help="print JSON")
    diff = _add(commands, "diff", "say how two plans differ", _diff)
    diff.add_argument("before", help="a plan file")
    diff.add_argument("after", help="another one")
    diff.add_argument("--json", action="store_true", help="print JSON")
    diff.add_argument(
        "--exit-code",
        action="store_true",
        help="end with the status 1 if the strategies differ",
    )
    listing = _add(
        commands, "list", "what each package offers here, and why not", _list
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    doctor = _add(commands, "doctor", "check this machine and installation", _doctor)
    doctor.add_argument("--json", action="store_true", help="print JSON")
    populate_simulate_parser(
        _add(commands, "simulate", "predict training on a cluster", lambda _: 0)
    )
    _mount(commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    Wrong use is the exit code 2. An expected failure is one line on standard error and the
    exit code 1.
    """
    return run_program(
        "drivetrain",
        populate_parser,
        argv,
        description="Makes PyTorch training fast and hard to kill.",
        versions=_versions,
    )


def _versions() -> str:
    """Returns a line for each package of Drivetrain that is installed."""
    found: dict[str, str] = {}
    for one in distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        if name == "drivetrain" or name.startswith("drivetrain-"):
            # The first one found is the one that an import would take.
            found.setdefault(name, one.version)
    return "\n".join(f"{name} {found[name]}" for name in sorted(found))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    return parser


def _add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="a training script that calls accelerate")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the script"
    )


def _budget(text: str) -> str:
    """Returns a budget as `accelerate` takes it; a number is one of seconds."""
    from drivetrain_core.search.budget import Budget

    budget = f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text
    try:
        Budget.of(budget)
    except ProgramError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return budget


def _png(path: str) -> str:
    if not path.endswith(".png"):
        message = f"a picture's path must end in .png, got {path!r}"
        raise argparse.ArgumentTypeError(message)
    return path


def _mount(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plugins = installed(COMMANDS)
    # A name that is taken, or wanted twice, is written with its distribution.
    taken = Counter([*commands.choices, *(plugin.name for plugin in plugins)])
    for plugin in plugins:
        name = plugin.name if taken[plugin.name] == 1 else plugin.qualified_name
        try:
            populate: Any = load_plugin(COMMANDS, plugin.qualified_name)
        except PluginError as error:
            _add(commands, name, "does not load", _failing(str(error)))
            continue
        summary = f"commands of {plugin.distribution}"
        parser = commands.add_parser(name, help=summary, allow_abbrev=False)
        try:
            populate(parser)
            if "--version" not in parser.format_usage():
                add_version(parser, plugin.distribution)
        except Exception as error:  # noqa: BLE001
            # A package of others may fail in any way, and must not take the rest along.
            broken = f"the command {name!r} of {plugin} cannot be made: {error!r}"
            parser.set_defaults(run=_failing(broken))


def _failing(message: str) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        raise PluginError(message)

    return run


def _search(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from drivetrain_core._script import search_script
    from drivetrain_core.search.report.html import require_writable_page
    from drivetrain_core.search.report.report import require_matplotlib

    if arguments.picture:
        require_matplotlib()  # Not after the search.
    if arguments.html:
        require_writable_page(arguments.html)
    with contextlib.ExitStack() as stack:
        if arguments.json:  # What the script prints is no part of it.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        accelerated = search_script(
            arguments.script, arguments.arguments, arguments.budget, arguments.plan
        )
    report = accelerated.report
    if report is None:  # Another rank searched.
        return 0
    if arguments.picture:
        report.picture(arguments.picture)
    if arguments.html:
        report.html(arguments.html)
    if arguments.json:
        whole = {"plan": accelerated.plan.to_dict(), "report": report.to_dict()}
        _print(json.dumps(whole, indent=2))
        return 0
    Console().print(report.table())
    _print(f"plan: {accelerated.plan}\nwritten to {arguments.plan}")
    return 0


def _apply(arguments: argparse.Namespace) -> int:
    from drivetrain_core._script import apply_plan

    apply_plan(arguments.plan, arguments.script, arguments.arguments)
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from drivetrain_core._explain import explain_plan, plan_problems
    from drivetrain_core._plan import Plan

    plan = Plan.load(arguments.plan)
    if arguments.json:
        _print(json.dumps(plan.to_dict(), indent=2))
    else:
        explain_plan(plan)
    problems = plan_problems(plan)
    for problem in problems.values():
        sys.stderr.write(f"drivetrain: {arguments.plan} cannot be applied: {problem}\n")
    return int(bool(problems))


def _diff(arguments: argparse.Namespace) -> int:
    from drivetrain_core._diff import diff_plans, show_diff
    from drivetrain_core._plan import Plan

    diff = diff_plans(Plan.load(arguments.before), Plan.load(arguments.after))
    if arguments.json:
        _print(json.dumps(diff.to_dict(), indent=2, default=str))
    else:
        show_diff(diff, (arguments.before, arguments.after))
    return int(arguments.exit_code and not diff.same_strategy)


def _list(arguments: argparse.Namespace) -> int:
    from drivetrain_core._explain import list_optimizations, show_optimizations

    with busy("looking at what is installed"):
        rows = list_optimizations()
    if arguments.json:
        _print(json.dumps(rows, indent=2))
    else:
        show_optimizations(rows)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from drivetrain_core._doctor import examine, show_checks

    with busy("checking this machine"):
        checks = examine()
    if arguments.json:
        _print(json.dumps([check.to_dict() for check in checks], indent=2))
    else:
        show_checks(checks)
    return 0 if all(check.state != "fail" for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
