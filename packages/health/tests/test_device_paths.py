"""Ways from RDMA devices within a node: rounds, what is slow, the tools' commands."""

import errno
import json
import random
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from drivetrain_health.checks import _gpu_all_to_all as all_to_all
from drivetrain_health.checks import _rdma as rdma
from drivetrain_health.checks import _task, plan_commands
from drivetrain_health.checks._task import CheckFailedError, NotHereError, Task
from drivetrain_health.checks._want import want_of
from drivetrain_health.decisions.device_paths import (
    DevicePath,
    describe_slow,
    rounds_of,
    slow_paths,
)
from drivetrain_testing import RecordedMachine

OPTIONS = json.loads((Path(__file__).parent / "data/tool_options.json").read_text())
NEW = "--numa_node=<id> --use_cuda=<id> --use_cuda_bus_id=<id>"
OLD = "--use_cuda=<id>"
USUAL = {"PIX": 195.0, "NODE": 160.0, "SYS": 110.0, "near": 195.0}


def dgx_like():
    """Two processors, each with four PCI switches, each with a GPU and a card."""
    facts = {
        "nodes": {
            str(n): {"cpulist": f"{8 * n}-{8 * n + 7}", "meminfo": "MemTotal: 9 kB"}
            for n in range(2)
        },
        "kinds": {
            "bridge": {"class": "0x060400", "vendor": "0x104c", "device": "0x8232"},
            "gpu": {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"},
            "card": {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"},
        },
        "pci": [],
        "infiniband": [],
    }
    for at in range(8):
        node, bus = {"numa_node": str(at // 4)}, 16 * (at + 1)
        above = f"pci0000:{bus:02x}/0000:{bus:02x}:00.0"
        facts["pci"].append([above, "bridge", node])
        for below, kind in enumerate(("gpu", "card"), 1):
            middle = f"{above}/0000:{bus + 1:02x}:{below:02x}.0"
            facts["pci"].append([middle, "bridge", node])
            address = f"0000:{bus + 1 + below:02x}:00.0"
            facts["pci"].append([f"{middle}/{address}", kind, node])
        port = {"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE"}
        port["link_layer"] = "InfiniBand"
        facts["infiniband"].append([f"mlx5_{at}", address, {"1": port}])
    return RecordedMachine(facts)


@pytest.fixture
def host(tmp_path):
    """What a host like a DGX is made of, read from its /sys."""
    pytest.importorskip("drivetrain_fabric")
    return rdma.read_host(str(dgx_like().write_sysfs(tmp_path / "sys")))


def test_every_device_reaches_every_memory_gpu_and_device(host):
    paths = rdma.paths_of(host, NEW)
    ends = [set(path[:2]) for path in paths]
    devices = [f"mlx5_{i}:1" for i in range(8)]
    for device in devices:
        for other in ("numa0", "numa1", *(f"gpu{i}" for i in range(8)), *devices):
            assert (ends.count({device, other}) == 1) == (device != other)
    kinds = [path.kind for path in paths]
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "device NODE": 12,
        "device SYS": 16,
        "gpu NODE": 24,
        "gpu PIX": 8,
        "gpu SYS": 32,
        "numa SYS": 8,
        "numa near": 8,
    }


def test_rounds_share_no_end_and_are_of_one_kind(host):
    paths = rdma.paths_of(host, NEW)
    rounds = rounds_of(paths)
    assert sorted(path for one in rounds for path in one) == sorted(paths)
    for one in rounds:
        ends = [end for path in one for end in path[:2]]
        assert len(ends) == len(set(ends))
        assert len({path.kind for path in one}) == 1
    # All pairs of eight devices take seven rounds, and all GPUs eight.
    kinds = [one[0].kind.split()[0] for one in rounds]
    assert (kinds.count("device"), kinds.count("gpu")) == (7, 8)


def measured(paths, dice, slow=()):
    """Rates of a host on which all is as it should be, but for some ways."""
    return {
        path: USUAL[path.distance]
        * dice.gauss(1.0, 0.04)
        * (0.55 if path[:2] in slow else 1.0)
        for path in paths
    }


def test_one_slow_way_of_64_is_named_and_no_other(host):
    paths = rdma.paths_of(host, NEW)
    for seed in range(200):
        dice = random.Random(seed)
        bad = f"mlx5_{dice.randrange(8)}:1", f"gpu{dice.randrange(8)}"
        rates = measured(paths, dice, {bad})
        slow = slow_paths(rates)
        assert [path[:2] for path in slow] == [bad]
        assert describe_slow(rates, slow).startswith(f"{bad[0]} to {bad[1]} (")


def test_healthy_hosts_have_no_slow_way(host):
    paths = rdma.paths_of(host, NEW)
    for seed in range(1000):
        assert slow_paths(measured(paths, random.Random(seed))) == {}


def test_device_or_gpu_whose_ways_are_all_slow_is_named_once(host):
    paths, dice = rdma.paths_of(host, NEW), random.Random(3)
    for end in ("mlx5_5:1", "gpu2"):
        rates = measured(paths, dice)
        rates = {p: r * (0.4 if end in p[:2] else 1.0) for p, r in rates.items()}
        said = describe_slow(rates, slow_paths(rates))
        assert said.startswith(
            f"all {17 if end[0] == 'm' else 8} ways of {end} are slow"
        )
        assert ";" not in said


def test_two_ways_of_a_kind_cannot_tell_which_is_wrong():
    rates = {DevicePath(f"d{i}:1", "numa0", "near"): 100.0 * (i + 1) for i in range(2)}
    assert slow_paths(rates) == {}


@pytest.mark.parametrize("offered", [NEW, OLD])
def test_commands_have_options_that_their_tools_document(host, tmp_path, offered):
    tmp_path.joinpath("numactl").write_text("#!/bin/sh\n")
    tmp_path.joinpath("numactl").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path), prepend=":")
        lines = plan_commands(str(tmp_path / "sys"), offered)
    commands = [line.removesuffix(" &") for line in lines if line[0] != "#"]
    assert len(commands) == 2 * (16 + 64 + 28) + 1
    for command in commands:
        tool, words = None, command.split()
        for word in words:
            if word in OPTIONS:
                tool = word
            elif word.startswith("-"):
                assert word.split("=")[0] in OPTIONS[tool]["options"], command
    assert commands[-1] == "alltoall_perf -b 256M -e 256M -g 8"
    text = "\n".join(commands)
    if offered == NEW:
        # It would bind itself elsewhere, whatever numactl has done.
        assert "numactl" not in text
        assert "--use_cuda_bus_id=0000:12:00.0 " in text
        assert text.count("--numa_node=1 ") == 16
    else:
        assert text.count("numactl --cpunodebind=1 --membind=1 ib_write_bw") == 16
        assert "--use_cuda=7 " in text


def test_plan_says_of_each_pair_who_receives(host, tmp_path):
    lines = plan_commands(str(tmp_path / "sys"), NEW)
    at = lines.index("# round 17: mlx5_0:1 to mlx5_1:1 (NODE)")
    assert lines[at + 1 : at + 3] == [
        "ib_write_bw -F --report_gbits -n 20000 -p 18515 -b -d mlx5_1 -i 1 &",
        "ib_write_bw -F --report_gbits -n 20000 -p 18515 -b -d mlx5_0 -i 1 127.0.0.1",
    ]


def test_memory_without_processors_and_ports_that_are_down_are_left_out(host):
    first, second = host.numa_nodes
    nics = list(host.nics)
    nics[0] = replace(nics[0], rdma=replace(nics[0].rdma, state="DOWN"))
    changed = replace(host, numa_nodes=(first, replace(second, cpus="")), nics=nics)
    ends = {end for path in rdma.paths_of(changed, NEW) for end in path[:2]}
    assert "numa0" in ends
    assert not {"numa1", f"{nics[0].rdma.device}:1"} & ends


TOOL = """#!{python}
import socket, sys, time
words = sys.argv[1:]
if words == ["--help"]:
    print("{offered}")
elif words[-1] == "127.0.0.1":
    {client}
else:
    # As the real one: it says nothing before its end, for it writes into a buffer.
    {server}
"""
SERVES = """listener = socket.create_server(("", int(words[words.index("-p") + 1])))
    listener.accept()
    time.sleep(600)"""
SENDS = """port = int(words[words.index("-p") + 1])
    socket.create_connection(("127.0.0.1", port))
    rate = {rate}
    print(" 65536      20000           197.51             %.2f       0.37" % rate)"""


FAILS = "; print('Failed status 12', flush=True); sys.exit(1)"
SERVES_AND_FAILS = SERVES.replace("accept()", "accept()" + FAILS)


@pytest.fixture
def perftest(host, tmp_path, monkeypatch):
    """A program in the place of ib_write_bw, on a host like a DGX with fewer devices."""
    few = replace(host, nics=host.nics[:3], gpus=host.gpus[:1])

    def install(
        client, *, server=SERVES, offered="--numa_node --use_cuda", topology=few
    ):
        tool = tmp_path / "bin/ib_write_bw"
        tool.parent.mkdir()
        text = TOOL.format(
            python=sys.executable, offered=offered, client=client, server=server
        )
        tool.write_text(text)
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
        monkeypatch.setattr(rdma, "read_host", lambda: topology)

    return install


def task_of(**options):
    task = Task(0.05, 60.0, 1, None, None, 0, 1, note=lambda _: None)
    return task._replace(**options)


@pytest.mark.slow
def test_rates_are_what_the_tool_says_of_each_way(perftest):
    perftest(SENDS.format(rate="80.5 if '--use_cuda=0' in words else 197.48"))
    measures = rdma.measure(task_of()).measures
    assert len(measures) == 3 * (2 + 1) + 3
    assert measures.pop("rdma_mlx5_1:1_gpu0_gbit_per_s") == 80.5
    assert measures["rdma_mlx5_0:1_mlx5_1:1_gbit_per_s"] == 197.48


BAD = "{'mlx5_2', '--numa_node=0'} <= set(words)"


@pytest.mark.slow
def test_way_that_stays_slow_when_it_is_alone_fails_the_check(perftest):
    perftest(SENDS.format(rate=f"60.0 if {BAD} else 190.0"))
    says = r"^mlx5_2:1 to numa0 \(near\): 60 Gbit/s, usual are 190$"
    with pytest.raises(CheckFailedError, match=says):
        rdma.measure(task_of())


@pytest.mark.slow
def test_way_that_is_fast_alone_is_as_fast_as_it_was_then(perftest, tmp_path):
    seen = f"'{tmp_path}/seen'"
    once = f"{BAD} and not __import__('os').path.exists({seen})"
    rate = f"60.0 if {once} and open({seen}, 'w') else 190.0"
    perftest(SENDS.format(rate=rate))
    assert set(rdma.measure(task_of()).measures.values()) == {190.0}


@pytest.mark.parametrize(
    ("client", "server", "says"),
    [
        ("print('Unable to open')", SERVES, "no rate above 0: Unable to open"),
        (
            "pass",
            "print('no device'); sys.exit(1)",
            "ended with exit code 1: no device",
        ),
        ("pass", "sys.exit(1)", "the receiving .* exit code 1: nothing at all"),
        ("pass", "pass", "no rate above 0: nothing at all"),
        (SENDS.format(rate="190.0") + FAILS, SERVES, "exit code 1: Failed status 12"),
        (SENDS.format(rate="190.0"), SERVES_AND_FAILS, "the receiving .* status 12"),
        (SENDS.format(rate="0.0"), SERVES, "no rate above 0: 65536 .* 0.00 "),
        ("print('2026 11 30 12 today')", SERVES, "no rate above 0: 2026 11 30"),
        ("print('2026 11 30 12 0.5')", SERVES, "no rate above 0: 2026 11 30"),
        ("print(' 65536 20000 nan nan 0.1')", SERVES, "no rate above 0: 65536 .* nan"),
        ("time.sleep(600)", SERVES, r"mlx5_0:1 to numa0 \(near\): .*timed out after"),
        ("pass", "time.sleep(600)", "does not listen"),
    ],
)
def test_tool_that_fails_or_hangs_is_a_failure_of_a_way(perftest, client, server, says):
    perftest(client, server=server)
    with pytest.raises(CheckFailedError, match=says):
        rdma.measure(task_of(limit_s=3.0))


NO_LIBRARY = """#!/bin/sh
echo "$0: error while loading shared libraries: libnccl.so.2: cannot open" >&2; exit 127
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NO_LIBRARY, "names no option: .*libnccl.so.2: cannot open"),
        ("#!/bin/sh\nexit 1\n", "names no option: nothing at all"),
        ("#!/nonexistent/sh\n", "ib_write_bw cannot be started: .*No such file"),
    ],
)
def test_tool_that_does_not_run_is_the_reason_why_the_check_is_skipped(
    perftest, host, tmp_path, text, says
):
    perftest("pass", topology=replace(host, nics=()))
    tmp_path.joinpath("bin/ib_write_bw").write_text(text)
    with pytest.raises(NotHereError, match=says):
        rdma.measure(task_of())


def test_tool_that_cannot_be_started_for_want_of_memory_says_so(monkeypatch):
    def popen(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(NotHereError, match="Cannot allocate memory") as raised:
        _task.said_by(["ib_write_bw"], 1.0)
    assert want_of(raised.value)


def running(tool):
    return [
        one
        for one in psutil.process_iter(["cmdline"])
        if tool in (one.info["cmdline"] or ())
    ]


@pytest.fixture
def wrapped(perftest, host, tmp_path):
    """A script in the place of the tool that runs the real one; returns where that is."""

    def install(client, *, before=""):
        perftest(client, topology=replace(host, nics=host.nics[:1], gpus=()))
        script = tmp_path / "bin/ib_write_bw"
        real = str(script.rename(script.with_name("real")))
        script.write_text(f'#!/bin/sh\n{before}\n{real} "$@"\nexit $?\n')
        script.chmod(0o755)
        return real

    return install


def test_script_around_the_tool_is_ended_with_all_that_it_has_started(wrapped):
    real = wrapped(SENDS.format(rate="190.0"))
    assert set(rdma.measure(task_of()).measures.values()) == {190.0}
    assert not running(real)


def test_script_around_a_tool_that_hangs_is_ended_with_it(wrapped):
    real = wrapped("time.sleep(600)")
    with pytest.raises(CheckFailedError, match="timed out after"):
        rdma.measure(task_of(limit_s=3.0))
    assert not running(real)


def test_what_has_left_its_parents_and_holds_the_pipe_is_not_waited_for(
    wrapped, monkeypatch
):
    monkeypatch.setattr(_task, "_END_S", 0.1)
    leave = 'case "$*" in *127.0.0.1|--help) ;; *) (sleep 61.25 &) ;; esac'
    wrapped(SENDS.format(rate="190.0"), before=leave)
    assert set(rdma.measure(task_of()).measures.values()) == {190.0}
    left = running("61.25")
    assert left
    for one in left:
        one.kill()


def test_check_is_skipped_without_the_tool_or_the_devices(perftest, host, monkeypatch):
    perftest("pass", topology=replace(host, nics=()))
    with pytest.raises(NotHereError, match="no RDMA device with an active port"):
        rdma.measure(task_of())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NotHereError, match="which the package perftest has"):
        rdma.measure(task_of())


def test_check_says_what_reads_the_topology(monkeypatch):
    monkeypatch.setitem(sys.modules, "drivetrain_fabric.topology", None)
    with pytest.raises(
        NotHereError, match=r"pip install drivetrain-health\[topology\]"
    ):
        rdma.read_host()


NCCL = """#!/bin/sh
echo '# Out of bounds values : {wrong}'
echo '# Avg bus bandwidth    : {rate} '
"""


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """Two devices of a sort, and a program in the place of NCCL's test."""
    monkeypatch.setattr(all_to_all, "gpus", lambda _: [torch.device("cpu")] * 2)
    monkeypatch.setattr(all_to_all.torch.accelerator, "synchronize", lambda _: None)

    def install(text):
        tool = tmp_path / "alltoall_perf"
        tool.write_text(text)
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return install


def test_test_of_nccl_measures_where_it_is_installed(two_gpus):
    assert list(all_to_all.measure(task_of()).measures) == ["gpus_all_to_all_gb_per_s"]
    two_gpus(NCCL.format(wrong="0 OK", rate="350.25"))
    assert all_to_all.measure(task_of()).measures == {
        "nccl_all_to_all_gb_per_s": 350.25
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NCCL.format(wrong="3 FAILED", rate="350.25"), "values : 3 FAILED"),
        (NCCL.format(wrong="3 FAILED", rate="350.25") + "exit 1\n", "s : 3 FAILED"),
        (
            NCCL.format(wrong="0 OK", rate="350.25") + "exit 2\n",
            "ended with exit code 2",
        ),
        (NCCL.format(wrong="0 OK", rate="0"), "alltoall_perf: # Avg bus bandwidth"),
        (NCCL.format(wrong="0 OK", rate="nan"), "alltoall_perf: # Avg bus bandwidth"),
        ("#!/bin/sh\necho 'NCCL failure'; exit 3\n", "exit code 3: NCCL failure"),
        ("#!/bin/sh\nexit 1\n", "alltoall_perf ended with exit code 1"),
        ("#!/bin/sh\nexec sleep 600\n", "timed out after"),
    ],
)
def test_test_of_nccl_that_fails_is_a_failure(two_gpus, text, says):
    two_gpus(text)
    with pytest.raises(CheckFailedError, match=says):
        all_to_all.measure(task_of(limit_s=0.5))


def test_test_of_nccl_without_its_library_says_nothing_of_the_node(two_gpus):
    two_gpus(NO_LIBRARY)
    with pytest.raises(NotHereError, match=r"libnccl\.so\.2: cannot open"):
        all_to_all.measure(task_of())
