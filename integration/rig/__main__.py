"""The rig's commands: `python -m rig list`, `run` and `compare`."""

from __future__ import annotations

import argparse
import json
import sys

from rig.lines import comparison_lines, topology_lines, training_line
from rig.namespaces import missing_because
from rig.report import Bench
from rig.scenarios import SCENARIOS
from rig.trainers import TrainingError


def list_scenarios(_arguments):
    for name, scenario in SCENARIOS.items():
        megabytes = scenario.shape.size_bytes / 1e6
        print(
            f"{name:32} {megabytes:5.1f} MB, computes {scenario.compute_s:.1f} s, "
            f"a flat ring takes {scenario.ring_per_compute:.1f} x that"
        )


def run(arguments):
    with _bench(arguments) as bench:
        found = {"topology": bench.topology(), "conditions": bench.conditions()}
        _show(arguments, topology_lines(found["topology"]))
        found["run"] = bench.train(arguments.launcher, arguments.bucket_cap_mb)[1]
        _show(arguments, [training_line(found["run"])])
    _finish(arguments, found)


def compare(arguments):
    with _bench(arguments) as bench:
        found = {"topology": bench.topology(), "conditions": bench.conditions()}
        _show(arguments, topology_lines(found["topology"]))
        pairs = arguments.launcher, arguments.pairs, arguments.bucket_cap_mb
        found["compared"] = compared = bench.compare(*pairs)
        _show(arguments, comparison_lines(compared))
        if arguments.against_swept:
            found["swept"] = swept = bench.sweep()
            ratio = swept[0]["median_s"] / compared["launched_s"]
            found["ratio_to_swept"] = ratio
            _show(arguments, map(training_line, swept))
            _show(arguments, [f"best size by hand / launched: {ratio:.3f}"])
    _finish(arguments, found)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="rig", description=__doc__, allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True)
    listed = commands.add_parser("list", help="the scenarios", allow_abbrev=False)
    listed.set_defaults(task=list_scenarios)
    for name, task in (("run", run), ("compare", compare)):
        command = commands.add_parser(name, allow_abbrev=False)
        command.add_argument("scenario", choices=SCENARIOS, metavar="SCENARIO")
        command.add_argument("--launcher", required=name == "compare", metavar="MODULE")
        command.add_argument("--steps", type=int, default=30)
        command.add_argument("--warmup", type=int, default=5, help="do not count")
        command.add_argument("--bucket-cap-mb", type=float)
        command.add_argument("--dtype", default="float32")
        command.add_argument("--json", action="store_true")
        command.set_defaults(task=task)
    command.add_argument("--pairs", type=int, default=3)
    command.add_argument("--against-swept", action="store_true")
    arguments = parser.parse_args(argv)
    because = missing_because() if arguments.task is not list_scenarios else None
    if because:
        print(because, file=sys.stderr)
        return 1
    try:
        arguments.task(arguments)
    except (TrainingError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _bench(arguments):
    return Bench(
        SCENARIOS[arguments.scenario],
        num_steps=arguments.steps,
        num_warmup=arguments.warmup,
        options=["--dtype", arguments.dtype],
    )


def _show(arguments, lines):
    if not arguments.json:
        print(*lines, sep="\n", flush=True)


def _finish(arguments, found):
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
