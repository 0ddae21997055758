"""The programs that look for races and for wrong bytes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[1] / "csrc"
# What every program that checks the allocator is made of.
CORE = (CSRC / "checks" / "core_sources.txt").read_text().split()
# What those on the strict double of the CUDA driver are made of beside it.
ON_STRICT_CUDA = (CSRC / "checks" / "random_sources.txt").read_text().split()


COMPILE = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compiles a program of `checks` with the allocator, which is compiled once."""
    folder = tmp_path_factory.mktemp("programs")
    core = compile_core(CSRC, folder)
    return lambda name: link_program(CSRC, name, folder, core)


@pytest.fixture(scope="module")
def programs_on_strict_cuda(tmp_path_factory):
    """Compiles a program of `checks` with the allocator and a double of the CUDA driver."""
    folder = tmp_path_factory.mktemp("programs")
    core = compile_core(CSRC, folder, files=[*CORE, *ON_STRICT_CUDA])
    return lambda name: link_program(CSRC, name, folder, core)


def compiler():
    found = shutil.which("c++") or shutil.which("g++")
    if found is None:
        pytest.skip("needs a C++ compiler")
    return found


def compile_core(sources, folder, *flags, files=CORE):
    paths = [str(sources / name) for name in files]
    command = [compiler(), *COMPILE, *flags, "-c", *paths]
    subprocess.run(command, check=True, cwd=folder)
    return [str(path) for path in folder.glob("*.o")]


def link_program(sources, name, folder, core, *flags):
    source, target = sources / "checks" / f"{name}.cpp", folder / name
    # A double of the driver in the program is found there as in a library.
    link = ["-rdynamic", "-pthread", "-ldl", "-o", str(target)]
    subprocess.run(
        [compiler(), *COMPILE, *flags, str(source), *core, *link], check=True
    )
    return target


def compile_without(file, text, instead, program, folder, files=CORE):
    """Compiles a program with an allocator that lacks one thing."""
    sources = folder / "csrc"
    shutil.copytree(CSRC, sources)
    source = (sources / file).read_text()
    assert source.count(text) == 1
    (sources / file).write_text(source.replace(text, instead))
    flags = ["-Wno-error=unused-parameter", "-Wno-error=unused-variable"]
    core = compile_core(sources, folder, *flags, files=files)
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


# What random programs have found, and short ones show.
CASES = (
    "destroyed_user_has_work_left",
    "destroyed_user_of_another_device",
    "sleep_waits_for_other_devices",
    "destroyed_owner_waits_for_nothing",
    "trim_gives_back_all",
    "unknown_capture_stays_whole",
    "graph_keeps_memory_after_refusal",
    "graph_keeps_mappings",
    "stream_waits_for_no_later_work",
    "host_waits_for_no_receive",
    "driver_destroys_its_events",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_was_found_once_holds(programs_on_strict_cuda, name):
    command = [str(programs_on_strict_cuda("check_cases")), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_random_programs_obtain_what_is_promised(programs_on_strict_cuda):
    program = programs_on_strict_cuda("check_random")
    options = ("--operations", 200_000)
    for seed in (1, 2):
        code, found = run(program, "--seed", seed, *options)
        assert not found["first"]
        assert code == 0
        # What is looked for did happen.
        happened = ("stolen", "stream_waits", "returned", "unmapped", "host_waits")
        around = ("shared", "refused", "launches", "destroyed_streams", "gates")
        assert min(found[name] for name in (*happened, *around)) > 10


@pytest.mark.faults
def test_ten_million_random_operations(programs_on_strict_cuda):
    program = programs_on_strict_cuda("check_random")
    options = ("--operations", 1_000_000)
    for seed in range(1, 11):
        code, found = run(program, "--seed", seed, *options)
        assert (code, found["first"]) == (0, [])


# How many threads and operations; who watches threads is slow.
SANITIZERS = {"address,undefined": (1, 1_000_000), "thread": (2, 200_000)}


@pytest.mark.faults
@pytest.mark.parametrize("kind", SANITIZERS)
def test_random_programs_under_sanitizers(kind, tmp_path):
    flags = ("-O1", "-g", f"-fsanitize={kind}", "-fno-omit-frame-pointer")
    core = compile_core(CSRC, tmp_path, *flags, files=[*CORE, *ON_STRICT_CUDA])
    program = link_program(CSRC, "check_random", tmp_path, core, *flags)
    threads, operations = SANITIZERS[kind]
    options = ("--operations", operations, "--threads", threads)
    command = [str(program), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR" not in done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.faults
@pytest.mark.parametrize("lacks", [*CARES.values(), *ORDERS.values()])
def test_random_programs_find_what_is_missing(lacks, tmp_path):
    files = [*CORE, *ON_STRICT_CUDA]
    program = compile_without(*lacks, "check_random", tmp_path, files=files)
    options = ("--operations", 200_000)
    assert any(fails(program, "--seed", seed, *options) for seed in range(1, 9))
