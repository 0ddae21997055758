"""The programs of `csrc/checks`, compiled here and run: races, contents, times."""

import functools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from drivetrain_testing import Row

CSRC = Path(__file__).parents[1] / "csrc"
CORE = (CSRC / "checks" / "core_sources.txt").read_text().split()
# The CUDA driver's side, on a double that keeps the rules of the driver's documentation.
ON_STRICT_CUDA = (CSRC / "checks" / "random_sources.txt").read_text().split()
FAST = ("-O3", "-flto=auto")


@functools.cache
def folder():
    return tempfile.TemporaryDirectory(prefix="drivetrain-memory-")


def compiled(program, *flags, more=()):
    """The program's file; None without a compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    target = Path(folder().name) / f"{program}{''.join(flags)}".replace("/", "-")
    if not target.exists():
        files = [str(CSRC / one) for one in (*CORE, *more, f"checks/{program}.cpp")]
        # A double of the driver in the program is found there as in a library.
        link = ["-pthread", "-rdynamic", "-ldl"]
        command = [compiler, "-std=c++17", *flags, *files, *link]
        subprocess.run([*command, "-o", str(target)], check=True)
    return target


def run(program, *arguments):
    """What the program prints, its exit status, and what it says of itself."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return found, done.returncode, done.stderr


def without_compiler():
    return Row(figure="needs a C++ compiler", holds=None)


def races(quick):
    program = compiled("check_races", *FAST)
    if program is None:
        return without_compiler()
    each, seeds = (150_000, 2) if quick else (1_250_000, 8)
    found = [run(program, each, seed) for seed in range(1, seeds + 1)]
    complaints = sum(counts["complaints"] for counts, _, _ in found)
    stolen = sum(counts["stolen"] for counts, _, _ in found)
    return Row(
        figure=f"{complaints} in {each * seeds:,} operations on streams that are vector "
        f"clocks; {stolen:,} chunks changed streams",
        holds=complaints == 0 and all(code == 0 for _, code, _ in found),
        proven_on="simulation",
    )


def contents(quick):
    program = compiled("check_contents", *FAST)
    if program is None:
        return without_compiler()
    operations = 20_000 if quick else 1_000_000
    found, code, _ = run(program, operations, 3)
    return Row(
        figure=f"{found['wrong']} wrong in {operations:,} operations on threads, byte "
        "for byte",
        holds=code == 0 and found["wrong"] == 0,
        proven_on="host-driver",
    )


def random_operations(quick):
    program = compiled("check_random", *FAST, more=ON_STRICT_CUDA)
    if program is None:
        return without_compiler()
    each, seeds = (100_000, 1) if quick else (1_000_000, 10)
    found = [
        run(program, "--operations", each, "--seed", seed)
        for seed in range(1, seeds + 1)
    ]
    complaints = sum(counts.get("complaints", 1) for counts, _, _ in found)
    happened = ("refused", "graphs", "destroyed_streams", "gates", "sleeps")
    totals = {name: sum(one.get(name, 0) for one, _, _ in found) for name in happened}
    return Row(
        figure=f"{complaints} in {each * seeds:,} operations, among them "
        + ", ".join(f"{count:,} {name}" for name, count in totals.items()),
        holds=complaints == 0 and all(code == 0 for _, code, _ in found),
        proven_on="host-driver",
        details=totals,
    )


@functools.cache
def timed():
    program = compiled("bench_hit_path", *FAST)
    return None if program is None else run(program)[0]


def hit_path(quick):
    del quick
    found = timed()
    if found is None:
        return without_compiler()
    share = found["p99_ns"] / found["native_median_ns"]
    return Row(
        figure=f"p99 {share:.2f} x ({found['median_ns']:.0f} ns, p99 "
        f"{found['p99_ns']:.0f} ns for a pair, with 2,000 free blocks)",
        holds=share <= 1.25,
        proven_on="host-driver",
        details=found,
    )


def beside_native(quick):
    del quick
    found = timed()
    if found is None:
        return without_compiler()
    ratio = found["ratio"]
    return Row(
        figure=f"{ratio:.1f}x faster than a std::set model of PyTorch's "
        f"({found['native_median_ns']:.0f} ns)",
        holds=ratio >= 3,
        proven_on="host-driver",
        details=found,
    )


def orders(quick):
    if quick:
        return Row(figure="takes longer than the quick form", holds=None)
    tests = CSRC.parent / "tests" / "test_checks.py"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "faults", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Row(
        figure="without any one of them a check fails"
        if done.returncode == 0
        else done.stdout[-500:],
        holds=done.returncode == 0,
        proven_on="simulation",
    )


def sanitizers(quick):
    if quick:
        return Row(figure="ten programs compile for longer than that", holds=None)
    operations = 100_000
    reports = []
    programs = {
        "check_races": ((), (operations, 5)),
        "check_contents": ((), (operations, 5)),
        "check_faults": ((), (operations, 5)),
        "check_cases": (ON_STRICT_CUDA, ()),
        "check_random": (ON_STRICT_CUDA, ("--operations", operations, "--seed", 5)),
    }
    for kind in ("address,undefined", "thread"):
        flags = ("-O1", "-g", f"-fsanitize={kind}", "-fno-omit-frame-pointer")
        for name, (more, arguments) in programs.items():
            program = compiled(name, *flags, more=more)
            if program is None:
                return without_compiler()
            _, code, said = run(program, *arguments)
            if code != 0 or "ERROR" in said or "WARNING" in said:
                reports.append(f"{name} under {kind}: {said[:300]}")
    return Row(
        figure=f"{len(reports)} in {operations:,} operations of each program under each "
        "of AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer",
        holds=not reports,
        proven_on="host-driver",
        details={"reports": reports},
    )
