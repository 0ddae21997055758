"""The programs that look for races and for wrong bytes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[1] / "csrc"
# What every program that checks the allocator is made of.
CORE = (CSRC / "checks" / "core_sources.txt").read_text().split()


COMPILE = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compiles a program of `checks` with the allocator, which is compiled once."""
    folder = tmp_path_factory.mktemp("programs")
    core = compile_core(CSRC, folder)
    return lambda name: link_program(CSRC, name, folder, core)


def compiler():
    found = shutil.which("c++") or shutil.which("g++")
    if found is None:
        pytest.skip("needs a C++ compiler")
    return found


def compile_core(sources, folder, *flags):
    files = [str(sources / name) for name in CORE]
    command = [compiler(), *COMPILE, *flags, "-c", *files]
    subprocess.run(command, check=True, cwd=folder)
    return [str(path) for path in folder.glob("*.o")]


def link_program(sources, name, folder, core):
    source, target = sources / "checks" / f"{name}.cpp", folder / name
    command = [compiler(), *COMPILE, str(source), *core, "-pthread", "-o", str(target)]
    subprocess.run(command, check=True)
    return target


def compile_without(file, text, instead, program, folder):
    """Compiles a program with an allocator that lacks one thing."""
    sources = folder / "csrc"
    shutil.copytree(CSRC, sources)
    source = (sources / file).read_text()
    assert source.count(text) == 1
    (sources / file).write_text(source.replace(text, instead))
    flags = ["-Wno-error=unused-parameter", "-Wno-error=unused-variable"]
    core = compile_core(sources, folder, *flags)
    return link_program(sources, program, folder, core)


def run(program, *arguments):
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_no_tenant_comes_before_the_one_before_it_is_done(programs):
    program = programs("check_races")
    for seed in (1, 2):
        code, found = run(program, 300_000, seed)
        assert found["complaints"] == 0, found["first"]
        assert code == 0
        # What is looked for did happen.
        happened = ("stolen", "stream_waits", "returned", "unmapped", "out_of_memory")
        assert min(found[name] for name in happened) > 100


@pytest.mark.slow
def test_tenants_read_what_they_wrote(programs):
    program = programs("check_contents")
    assert run(program, 20_000, 3) == (0, {"operations": 20_000, "wrong": 0})
    assert run(program, 1_000, 4, 200) == (0, {"operations": 1_000, "wrong": 0})


@pytest.mark.slow
def test_device_that_refuses_loses_nothing(programs):
    program = programs("check_faults")
    for seed in (1, 2, 3, 4):
        code, found = run(program, 10_000, seed)
        assert found["complaints"] == 0, found["first"]
        assert code == 0
        assert min(found["refused"], found["out_of_memory"]) > 50


# Each keeps the books whole when the device refuses in the middle.
CARES = {
    "freed": (
        "allocator.cpp",
        "      live_.insert(block);\n      throw;",
        "      throw;",
    ),
    "settled": (
        "allocator.cpp",
        "    pending_.erase(kept, next);\n    throw;",
        "    throw;",
    ),
    "destroyed": (
        "allocator.cpp",
        "      free_chunks.push_back(id);\n      throw;",
        "throw;",
    ),
}


@pytest.mark.faults
@pytest.mark.parametrize("name", CARES)
def test_check_of_faults_finds_what_is_lost(name, tmp_path):
    program = compile_without(*CARES[name], "check_faults", tmp_path)
    assert any(fails(program, 10_000, seed) for seed in range(1, 9))


def fails(program, *arguments):
    """Returns whether a program finds something, or is lost in what it looks through."""
    command = [str(program), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60.0)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


# Each orders a stream after another; without any one of them memory is handed over early.
ORDERS = {
    "reclaim_from_stream": (
        "chunk_supply.cpp",
        "follow(to, {&from.clock(), block->freed_at()});",
        ";",
    ),
    "spare": ("chunk_supply.cpp", "follow(to, after);", ";"),
    "shared": ("allocator.cpp", "counters_.stream_waits += own.follow(user);", ";"),
    "freed": ("arena.cpp", "become_free_at(clock_.advance());", "become_free_at(0);"),
    "poll": (
        "allocator.cpp",
        "return user.clock->passed(user.time);",
        "return user.clock != nullptr;",
    ),
}


@pytest.mark.faults
@pytest.mark.parametrize("name", ORDERS)
def test_check_of_races_finds_an_order_that_is_missing(name, tmp_path):
    program = compile_without(*ORDERS[name], "check_races", tmp_path)
    assert any(run(program, 100_000, seed)[1]["complaints"] for seed in range(1, 9))
