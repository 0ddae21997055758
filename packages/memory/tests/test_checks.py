"""The programs that look for races and for wrong bytes."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[1] / "csrc"
# What every program that checks the allocator is made of.
CORE = (CSRC / "checks" / "core_sources.txt").read_text().split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


def compile_program(sources, program, folder, *flags):
    """Compiles a program of `checks` with the allocator in a folder."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    files = [f"{sources}/{name}" for name in (*CORE, f"checks/{program}.cpp")]
    target = folder / program
    command = [compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run([*command, *files, "-pthread", "-o", str(target)], check=True)
    return target


def run(program, *arguments):
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def test_no_tenant_comes_before_the_one_before_it_is_done(folder):
    program = compile_program(CSRC, "check_races", folder)
    for seed in (1, 2):
        code, found = run(program, 300_000, seed)
        assert found["complaints"] == 0, found["first"]
        assert code == 0
        # What is looked for did happen.
        happened = ("stolen", "stream_waits", "returned", "unmapped", "out_of_memory")
        assert min(found[name] for name in happened) > 100


def test_tenants_read_what_they_wrote(folder):
    program = compile_program(CSRC, "check_contents", folder)
    assert run(program, 20_000, 3) == (0, {"operations": 20_000, "wrong": 0})
    assert run(program, 1_000, 4, 200) == (0, {"operations": 1_000, "wrong": 0})


# Each orders a stream after another; without any one of them memory is handed over early.
ORDERS = {
    "steal": ("supply.cpp", "follow(to, {&from.clock(), block->freed_at});", ";"),
    "spare": ("supply.cpp", "follow(to, after);", ";"),
    "shared": ("allocator.cpp", "counters_.stream_waits += own.follow(user);", ";"),
    "freed": ("arena.cpp", "block->freed_at = clock_.advance();", ";"),
    "poll": (
        "allocator.cpp",
        "return user.clock->passed(user.time);",
        "return user.clock != nullptr;",
    ),
}


@pytest.mark.faults
@pytest.mark.parametrize("name", ORDERS)
def test_check_of_races_finds_an_order_that_is_missing(name, tmp_path):
    file, text, instead = ORDERS[name]
    sources = tmp_path / "csrc"
    shutil.copytree(CSRC, sources)
    source = (sources / file).read_text()
    assert len(re.findall(re.escape(text), source)) == 1
    (sources / file).write_text(source.replace(text, instead))
    flags = ["-Wno-error=unused-parameter", "-Wno-error=unused-variable"]
    program = compile_program(sources, "check_races", tmp_path, *flags)
    assert any(run(program, 100_000, seed)[1]["complaints"] for seed in range(1, 9))
