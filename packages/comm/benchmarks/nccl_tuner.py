"""What the plug-in for NCCL costs a collective, and that its threads share nothing.

    python nccl_tuner.py [--quick] [--only nccl-tuner-call]

Neither needs NCCL or a GPU: programs of `csrc/nccl_tuner/checks` call the plug-in as NCCL
does.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from drivetrain_comm.nccl import Rule, Table, format_table, tuner_library
from drivetrain_testing import Bar, Row, run_bars

SOURCES = Path(__file__).parents[1] / "csrc" / "nccl_tuner"
NUM_COMMUNICATORS = 8
_NUM_RULES, _MOST = 10_000, 8.0
_RANKS, _NODES, _STEP_BYTES = 16, 2, 4096
_FLAGS = ["-std=c++17", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]


def compiler():
    """Returns a C++ compiler, or None."""
    return shutil.which("c++") or shutil.which("g++")


def build_threads(folder):
    """Compiles the check of threads, with the plug-in, under ThreadSanitizer."""
    program = Path(folder) / "check_threads"
    sources = [*SOURCES.glob("*.cpp"), SOURCES / "checks" / "check_threads.cpp"]
    command = [compiler(), *_FLAGS, "-O1", "-fsanitize=thread", *map(str, sources)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def run_threads(program, folder, num_calls):
    """Runs that check; what it returns has the sanitizer's report in `stderr`."""
    table = Path(folder) / "threads.table"
    table.write_text(format_table(table_of_threads()))
    command = [str(program), str(table), str(num_calls)]
    env = {**os.environ, "TSAN_OPTIONS": "halt_on_error=0 exitcode=66"}
    env.pop("DRIVETRAIN_COMM_NCCL_TABLE_HASH", None)
    # The sanitizer of older compilers cannot run where newer kernels put memory; the
    # second way is not allowed in every container.
    for before in ([], ["setarch", "-R"]):
        done = subprocess.run(
            [*before, *command],
            check=False,
            capture_output=True,
            text=True,
            env=env,
            timeout=120,
        )
        if "unexpected memory mapping" not in done.stderr:
            break
    return done


def table_of_threads():
    """The rules that the check of threads asks for."""
    rules = [
        Rule(
            collective="all_reduce",
            algorithm="ring",
            protocol="ll",
            end_bytes=1 << 20,
            ranks=ranks,
            channels=ranks,
        )
        for ranks in range(2, 2 * NUM_COMMUNICATORS + 1, 2)
    ]
    return Table(rules=tuple(rules))


def table_of_sizes(num_rules):
    """Rules for one communicator, each of 4 KiB, with all choices in turn."""
    choices = [("ring", "ll"), ("tree", "ll128"), ("ring", "simple")]
    rules = []
    for at in range(num_rules):
        algorithm, protocol = choices[at % len(choices)]
        rules.append(
            Rule(
                collective="all_reduce",
                algorithm=algorithm,
                protocol=protocol,
                begin_bytes=at * _STEP_BYTES,
                end_bytes=(at + 1) * _STEP_BYTES,
                ranks=_RANKS,
                nodes=_NODES,
            )
        )
    return Table(rules=tuple(rules))


def call(quick):
    """A decision among 10,000 rules of one communicator, beside one among a single rule."""
    if compiler() is None:
        return Row(figure="needs a C++ compiler", holds=None)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "time_calls")
        source = SOURCES / "checks" / "time_calls.cpp"
        command = [compiler(), *_FLAGS, "-O2", str(source), "-ldl"]
        subprocess.run([*command, "-o", str(program)], check=True)
        found = {num: call_times(program, folder, num) for num in (_NUM_RULES, 1)}
    many, one = (found[num]["call_ns"] for num in (_NUM_RULES, 1))
    return Row(
        figure=f"{many / one:.1f} x ({many:.0f} ns, of a single rule {one:.0f} ns, empty "
        f"{found[1]['empty_ns']:.0f} ns)",
        holds=many <= _MOST * one,
        details={f"{num} rules": times for num, times in found.items()},
    )


def call_times(program, folder, num_rules):
    """What a program that calls the plug-in as NCCL does measured with so many rules."""
    table = Path(folder, f"table-{num_rules}")
    table.write_text(format_table(table_of_sizes(num_rules)))
    # An eighth of the sizes is above all rules, where NCCL decides.
    most = num_rules * _STEP_BYTES * 8 // 7
    words = [tuner_library(), _RANKS, _NODES, most]
    env = {**os.environ, "DRIVETRAIN_COMM_NCCL_TABLE": str(table)}
    env.pop("DRIVETRAIN_COMM_NCCL_TABLE_HASH", None)
    command = [str(program), *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return json.loads(done.stdout)


def threads(quick):
    """Eight communicators, two threads each, under ThreadSanitizer."""
    if compiler() is None:
        return Row(figure="needs a C++ compiler", holds=None)
    num_calls = 10_000 if quick else 200_000
    with tempfile.TemporaryDirectory() as folder:
        done = run_threads(build_threads(folder), folder, num_calls)
    calls = 2 * NUM_COMMUNICATORS * num_calls
    num_races = done.stderr.count("WARNING: ThreadSanitizer")
    return Row(
        figure=f"{num_races} races in {calls:,} calls; {done.stdout.strip()}",
        holds=done.returncode == 0 and num_races == 0,
        details={"stderr": done.stderr[-2000:]},
    )


BARS = [
    ("nccl-tuner-call", "10,000 rules: <= 8 x a single one", call),
    ("nccl-tuner-threads", "no race among 8 communicators", threads),
]

if __name__ == "__main__":
    bars = [Bar(name=name, bound=bound, measure=run) for name, bound, run in BARS]
    sys.exit(run_bars(bars, description=__doc__))
