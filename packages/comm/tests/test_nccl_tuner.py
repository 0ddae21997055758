"""The plug-in for NCCL, driven as NCCL drives it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain_comm.nccl import (
    ALGORITHMS,
    IGNORED,
    PROTOCOLS,
    VERSIONS,
    HostedTuner,
    format_table,
    load_table,
    parse_table,
    tuner_library,
)

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import nccl_tuner

TABLE = """drivetrain-nccl-table 1
all_reduce      0B..64KiB    8  1  tree  ll     channels=4
all_reduce      64KiB..1MiB  8  1  ring  ll128
all_reduce      0B..64KiB    16 2  ring  simple channels=2
all_gather      1MiB..       *  *  pat   simple
reduce_scatter  0B..         *  *  ring  ll     num_pipe_ops=2
broadcast       0B..         *  *  ring  ll     reg_buff=1
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.delenv("DRIVETRAIN_COMM_NCCL_TABLE_HASH", raising=False)
    monkeypatch.delenv("DRIVETRAIN_COMM_NCCL_TABLE", raising=False)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A file that the plug-in finds."""
    file = tmp_path / "table"
    file.write_text(TABLE)
    monkeypatch.setenv("DRIVETRAIN_COMM_NCCL_TABLE", str(file))
    return file


def costs_of(num_algorithms=7, num_protocols=3):
    """Costs that all differ, so that a change anywhere is seen."""
    return [
        [10.0 + 4 * row + column for column in range(num_protocols)]
        for row in range(num_algorithms)
    ]


def forced(algorithm, protocol):
    costs = costs_of()
    costs[ALGORITHMS.index(algorithm)][PROTOCOLS.index(protocol)] = 0.0
    return costs


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def tuner(table, version):
    with HostedTuner(version=version, ranks=8, nodes=1) as tuner:
        yield tuner


def test_rule_forces_one_choice_and_names_channels(tuner):
    found = tuner.choose("all_reduce", 1000, costs_of())
    assert found == (forced("tree", "ll"), 4)


def test_rule_without_channels_leaves_them_to_nccl(tuner):
    found = tuner.choose("all_reduce", 65536, costs_of())
    assert found == (forced("ring", "ll128"), 0)
    # NCCL always hands over 0; another number would show a write.
    assert tuner.choose("all_reduce", 65536, costs_of(), channels=7)[1] == 7


def test_range_begins_with_its_first_byte_and_ends_before_its_last(tuner):
    chosen = [tuner.chosen("all_reduce", at) for at in (0, 65535, 65536, 2**20 - 1)]
    assert chosen == [("tree", "ll")] * 2 + [("ring", "ll128")] * 2
    assert tuner.chosen("all_reduce", 2**20) is None
    assert tuner.chosen("all_gather", 2**20 - 1) is None
    assert tuner.chosen("all_gather", 2**63) == ("pat", "simple")


@pytest.mark.parametrize(
    ("collective", "size"), [("all_reduce", 1 << 20), ("reduce", 5), ("broadcast", 5)]
)
def test_without_a_rule_nothing_changes(tuner, collective, size):
    found = tuner.choose(collective, size, costs_of(), channels=3)
    assert found == (costs_of(), 3)


def test_what_nccl_cannot_do_stays_so_and_channels_stay(tuner):
    costs = costs_of()
    costs[ALGORITHMS.index("tree")][PROTOCOLS.index("ll")] = IGNORED
    assert tuner.choose("all_reduce", 1000, costs) == (costs, 0)
    nothing = [[IGNORED] * 3 for _ in ALGORITHMS]
    assert tuner.choose("all_reduce", 1000, nothing) == (nothing, 0)


def test_what_nccl_makes_a_thousand_times_as_expensive_stays_so(tuner):
    costs = costs_of()
    costs[ALGORITHMS.index("tree")][PROTOCOLS.index("ll")] *= 1024
    assert tuner.choose("all_reduce", 1000, costs) == (costs, 0)
    # Where there is nothing else, it is what NCCL would take as well.
    alone = [[IGNORED] * 3 for _ in ALGORITHMS]
    alone[ALGORITHMS.index("tree")][PROTOCOLS.index("ll")] = 10240.0
    assert tuner.choose("all_reduce", 1000, alone)[1] == 4


@pytest.mark.parametrize(("num_algorithms", "num_protocols"), [(6, 3), (1, 3), (7, 2)])
def test_costs_of_an_older_nccl_are_not_left(tuner, num_algorithms, num_protocols):
    costs = costs_of(num_algorithms, num_protocols)
    assert tuner.choose("all_gather", 1 << 21, costs) == (costs, 0)
    # The row is as long as NCCL says, wherever the choice stands.
    costs[0][0] = 0.0
    found = tuner.choose("all_reduce", 1000, costs_of(num_algorithms, num_protocols))
    assert found == (costs, 4)


def test_conditions_on_merged_calls_and_buffers_hold(tuner):
    assert tuner.chosen("reduce_scatter", 5) is None
    assert tuner.chosen("reduce_scatter", 5, num_pipe_ops=2) == ("ring", "ll")
    assert tuner.chosen("broadcast", 5) is None
    assert tuner.chosen("broadcast", 5, reg_buff=True) == ("ring", "ll")


def test_unknown_collective_changes_nothing(tuner, monkeypatch):
    monkeypatch.setattr(
        "drivetrain_comm.nccl._library.COLLECTIVES", ["?"] * 5 + ["all_to_all"]
    )
    assert tuner.choose("all_to_all", 5, costs_of()) == (costs_of(), 0)


def test_plugin_names_itself_and_chunks_stay_nccls(tuner, version):
    assert tuner.tuner.name == b"drivetrain"
    if version == 6:
        assert tuner.tuner.get_chunk_size is None


def test_it_says_once_what_it_follows(tuner, table):
    tuner.chosen("all_reduce", 5)
    (message,) = tuner.messages
    assert message.level == "info"
    assert message.text == (
        f"drivetrain tuner: {table}: 5 of 6 rules are for 8 ranks on 1 nodes, hash "
        f"{load_table(table).hash}"
    )


def test_communicators_of_two_sizes_have_rules_of_their_own(table, version):
    with (
        HostedTuner(version=version, ranks=8, nodes=1) as small,
        HostedTuner(version=version, ranks=16, nodes=2) as large,
    ):
        for _ in range(3):
            assert small.choose("all_reduce", 5, costs_of()) == (
                forced("tree", "ll"),
                4,
            )
            found = large.choose("all_reduce", 5, costs_of())
            assert found == (forced("ring", "simple"), 2)
        small.close()
        assert large.chosen("all_reduce", 5) == ("ring", "simple")


def refused(version=5):
    with HostedTuner(version=version, ranks=8, nodes=1) as tuner:
        assert not tuner.is_tuned
        assert tuner.choose("all_reduce", 5, costs_of(), channels=3) == (costs_of(), 3)
        (message,) = tuner.messages
    assert message.level == "warn"
    return message.text


@pytest.mark.parametrize("value", [None, ""])
def test_no_table_leaves_everything_to_nccl(version, value, monkeypatch):
    if value is not None:
        monkeypatch.setenv("DRIVETRAIN_COMM_NCCL_TABLE", value)
    assert refused(version) == (
        "drivetrain tuner: NCCL decides alone: DRIVETRAIN_COMM_NCCL_TABLE is not set"
    )


def test_refused_table_leaves_everything_to_nccl(version, table):
    table.write_text(TABLE + "all_reduce 0..5 * * ring ll\n")
    assert f"{table}:8: a size must be a whole number" in refused(version)


def test_other_hash_leaves_everything_to_nccl(version, table, monkeypatch):
    hash_ = load_table(table).hash
    monkeypatch.setenv("DRIVETRAIN_COMM_NCCL_TABLE_HASH", hash_)
    with HostedTuner(version=version, ranks=8, nodes=1) as tuner:
        assert tuner.is_tuned
    table.write_text(TABLE.replace("channels=4", "channels=5"))
    assert refused(version) == (
        f"drivetrain tuner: NCCL decides alone: {table}: its rules must have the hash "
        f"{hash_} of DRIVETRAIN_COMM_NCCL_TABLE_HASH, got {load_table(table).hash}"
    )


def test_message_may_hold_what_formats_do(tmp_path, monkeypatch):
    file = tmp_path / "100%s %n"
    monkeypatch.setenv("DRIVETRAIN_COMM_NCCL_TABLE", str(file))
    assert f"{file}: it cannot be read" in refused()


def test_ten_thousand_rules_are_found(table):
    many = nccl_tuner.table_of_sizes(10_000)
    table.write_text(format_table(many))
    assert parse_table(table.read_text()) == many
    with HostedTuner(ranks=16, nodes=2) as tuner:
        for at in (0, 1, 4999, 9998, 9999):
            rule = many.rules[at]
            for size in (rule.begin_bytes, rule.end_bytes - 1):
                found = tuner.chosen("all_reduce", size)
                assert found == (rule.algorithm, rule.protocol)
        assert tuner.chosen("all_reduce", many.rules[-1].end_bytes) is None
    with HostedTuner(ranks=16, nodes=1) as other:
        assert other.is_tuned
        assert other.chosen("all_reduce", 5) is None


def test_library_offers_the_plugin_only():
    tool = shutil.which("nm")
    if tool is None:
        pytest.skip("needs nm")
    command = [tool, "-D", "--defined-only", str(tuner_library())]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    assert names == {f"ncclTunerPlugin_v{number}" for number in VERSIONS}


@pytest.fixture(scope="module")
def check_threads(tmp_path_factory):
    if nccl_tuner.compiler() is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("threads")
    try:
        return nccl_tuner.build_threads(folder), folder
    except subprocess.CalledProcessError:
        pytest.skip("needs ThreadSanitizer's library")


@pytest.mark.faults
def test_threads_of_eight_communicators_share_nothing(check_threads):
    done = nccl_tuner.run_threads(*check_threads, 5000)
    assert (done.returncode, done.stdout) == (0, "8 messages, 0 errors\n"), done.stderr
    assert "ThreadSanitizer" not in done.stderr


@pytest.mark.faults
def test_check_of_threads_sees_a_race(tmp_path):
    if nccl_tuner.compiler() is None:
        pytest.skip("needs a C++ compiler")
    sources = tmp_path / "csrc"
    shutil.copytree(nccl_tuner.SOURCES, sources)
    source = (sources / "policy.cpp").read_text()
    line = "  const Choice* choice = find(entries, any, bytes);\n"
    assert source.count(line) == 1
    racy = "  static long num_calls = 0;\n  if (++num_calls < 0) return nullptr;\n"
    (sources / "policy.cpp").write_text(source.replace(line, racy + line))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl_tuner, "SOURCES", sources)
        try:
            program = nccl_tuner.build_threads(tmp_path)
        except subprocess.CalledProcessError:
            pytest.skip("needs ThreadSanitizer's library")
    done = nccl_tuner.run_threads(program, tmp_path, 5000)
    assert done.returncode == 66
    assert "data race" in done.stderr


def test_nccl_itself_finds_the_plugin():
    """NCCL's way to it: dlopen by the path of NCCL_TUNER_PLUGIN, and dlsym."""
    nccl = pytest.importorskip("nvidia.nccl", reason="needs NCCL")
    libraries = list(Path(next(iter(nccl.__path__))).glob("lib/libnccl.so*"))
    assert libraries
    code = (
        "import ctypes, sys\n"
        "nccl = ctypes.CDLL(sys.argv[1])\n"
        "number = ctypes.c_int()\n"
        "assert nccl.ncclGetVersion(ctypes.byref(number)) == 0\n"
        "plugin = ctypes.CDLL(sys.argv[2])\n"
        "newest = 6 if number.value >= 23000 else 5 if number.value >= 22800 else 4\n"
        "symbol = f'ncclTunerPlugin_v{newest}'\n"
        "assert symbol.encode() in open(sys.argv[1], 'rb').read()\n"
        "assert ctypes.c_char_p.in_dll(plugin, symbol).value == b'drivetrain'\n"
    )
    command = [sys.executable, "-c", code, str(libraries[0]), str(tuner_library())]
    subprocess.run(command, check=True)
