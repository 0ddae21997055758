"""Measurements of a node: what they find, what they skip, and what becomes of those that hang."""

import contextlib
import functools
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed import DistStoreError, HashStore

from drivetrain_core import ProgramError
from drivetrain_health import checks as health
from drivetrain_health import faults
from drivetrain_health.checks import CHECKS, CheckConfig
from drivetrain_health.checks import _collectives as collectives
from drivetrain_health.checks import _disk as disk
from drivetrain_health.checks import _loopback as loopback
from drivetrain_health.checks import _rdma as rdma
from drivetrain_health.checks._answer_store import answer_store
from drivetrain_health.checks._bench import Bench, BenchResult, _messages, _tell
from drivetrain_health.checks._check_node import measure_node
from drivetrain_health.checks._check_nodes import confer
from drivetrain_health.checks._nic import Port, read_ports
from drivetrain_health.checks._parent_store import ParentStore
from drivetrain_health.checks._task import CheckFailedError, NotHereError, Task

CPU = ("compute", "memory", "loopback", "disk", "bits")


def config_of(tmp_path, **options):
    options = {
        "measure_s": 0.05,
        "limit_s": 60.0,
        "round_s": 120.0,
        "join_s": 60.0,
        "num_threads": 1,
        "folder": str(tmp_path),
        **options,
    }
    return CheckConfig(**options)


def task_of(**options):
    task = Task(0.05, 10.0, 1, None, None, 0, 1, note=lambda _: None)
    return task._replace(**options)


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    """Servers of measurements for all tests, since torch takes seconds to import."""
    config = config_of(tmp_path_factory.mktemp("bench"))
    with Bench(config) as first, Bench(config) as second:
        first.start()
        second.start()
        yield first, second


@pytest.fixture
def bench(benches):
    return benches[0]


@pytest.fixture
def watcher():
    """Does something to the next process that a server of measurements forks."""
    threads = []

    def watch(bench, act):
        server = psutil.Process(bench._server.pid)
        before = {one.pid for one in server.children()}

        def run():
            while True:
                for child in server.children():
                    if child.pid not in before:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            act(child)
                        return

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield watch
    for thread in threads:
        thread.join()


def test_package_has_its_names_in_order_and_all_of_them():
    assert health.__all__ == sorted(health.__all__, key=lambda n: (not n.isupper(), n))
    assert all(hasattr(health, name) for name in health.__all__)
    assert set(health.__all__) <= set(dir(health))


@pytest.mark.slow
def test_node_is_measured_and_what_is_not_there_is_skipped_with_a_reason(
    bench, tmp_path
):
    report = measure_node(bench, config_of(tmp_path), "a")
    assert report.is_good, report
    assert set(report.measures) >= {
        "compute_gflops",
        "memory_gb_per_s",
        "loopback_gb_per_s",
        "disk_write_mb_per_s",
        "disk_read_mb_per_s",
    }
    assert all(rate > 0 for rate in report.measures.values())
    assert len(report.digests) >= 1
    assert report.skipped.keys() >= {"exchange", "gpu_exchange"}
    assert all(report.skipped.values())
    if not torch.cuda.is_available():
        assert "there are 0" in report.skipped["gpu_compute"]
    # Each check has found something, or has said why not.
    assert (
        not set(CHECKS) - set(CPU) - report.skipped.keys() or torch.cuda.is_available()
    )


@pytest.mark.slow
def test_measurement_that_hangs_is_killed_and_says_where_it_was(bench, watcher):
    hung = []

    def stop(child):
        os.kill(child.pid, signal.SIGSTOP)
        hung.append(child)

    watcher(bench, stop)
    outcome = bench.measure("compute", limit_s=0.5)
    assert outcome.failed == "no result within 0.5 s"
    assert not hung[0].is_running()
    assert bench.measure("compute", limit_s=60).found.measures["compute_gflops"] > 0


@pytest.mark.slow
def test_measurement_that_is_killed_says_so_and_others_go_on(bench, watcher):
    watcher(bench, lambda child: child.kill())
    outcome = bench.measure("memory", limit_s=60)
    assert outcome.failed == ""
    assert outcome.not_made.startswith("its process was killed by SIGKILL from outside")
    assert bench.measure("memory", limit_s=60).found


def test_process_that_ends_before_it_is_asked_is_no_error_of_the_asking():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        _tell(ours, {"check": "memory"})
        assert not list(_messages(ours, time.monotonic() + 60))


@pytest.mark.slow
def test_server_that_was_killed_is_replaced(bench):
    os.kill(bench._server.pid, signal.SIGKILL)
    bench._server.wait()
    assert bench.measure("disk", limit_s=60).found


@pytest.mark.slow
def test_error_in_a_measurement_is_its_last_word(bench, tmp_path, monkeypatch):
    config = config_of(tmp_path)
    # It was checked when it was made: an error that nobody has foreseen.
    object.__setattr__(config, "num_threads", -1)
    monkeypatch.setattr(bench, "_config", config)
    assert bench.measure("compute", limit_s=60) == BenchResult(
        failed="its process ended with exit code 1: RuntimeError: set_num_threads "
        "expects a positive integer"
    )


@pytest.mark.slow
def test_memory_is_what_a_measurement_may_have_beside_its_parents(
    bench, tmp_path, monkeypatch
):
    # The server of a process that has much is forked with all of it.
    ballast = bytearray(1 << 29)
    config = config_of(tmp_path, memory_bytes=1 << 28)
    monkeypatch.setattr(bench, "_config", config)
    os.kill(bench._server.pid, signal.SIGKILL)
    bench._server.wait()
    assert bench.measure("loopback", limit_s=60).found
    assert len(ballast) > config.memory_bytes


@pytest.mark.slow
def test_check_for_which_memory_does_not_suffice_is_not_made_and_no_fault(
    bench, tmp_path, monkeypatch
):
    config = config_of(tmp_path, checks=("memory", "loopback"))
    # Less than anybody may ask for.
    object.__setattr__(config, "memory_bytes", 1 << 26)
    monkeypatch.setattr(bench, "_config", config)
    report = measure_node(bench, config, "a")
    assert report.is_good
    assert list(report.not_made) == ["memory"]
    assert "allocate" in report.not_made["memory"]
    assert "loopback_gb_per_s" in report.measures


@pytest.mark.slow
def test_what_a_measurement_leaves_behind_dies_with_it():
    """A child in a session of its own, and whose parent has ended, is found all the same."""
    code = textwrap.dedent(
        """
        import os, socket, subprocess, sys
        from drivetrain_health.checks import _measure_server as server
        from drivetrain_core.processes import adopt_orphans, children
        adopt_orphans()
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            leaf = subprocess.Popen(["sleep", "600"], start_new_session=True)
            os.write(write_end, str(leaf.pid).encode())
            os._exit(0)
        leaf = int(os.read(read_end, 32))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert server._end(pid) == 0
        assert not children()
        assert not os.path.exists(f"/proc/{leaf}")
        print("nothing is left")
        """
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "nothing is left\n", done.stderr


def test_checks_after_the_end_of_a_round_are_not_made(tmp_path, bench):
    config = config_of(tmp_path, checks=("compute", "disk"))
    # It was checked when it was made: a round that others have kept waiting.
    object.__setattr__(config, "round_s", 0.0)
    report = measure_node(bench, config, "a")
    assert report.failures == {
        "compute": "no time was left of 0 s for a round",
        "disk": "no time was left of 0 s for a round",
    }


def test_disk_that_cannot_be_written_is_a_failure(tmp_path):
    with pytest.raises(CheckFailedError, match="gone: No such file or directory"):
        disk.measure(task_of(folder=str(tmp_path / "gone")))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_that_is_full_or_lies_is_a_failure(tmp_path, monkeypatch):
    def full(**_):
        return Path("/dev/full").open("r+b", buffering=0)

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", full)
    with pytest.raises(CheckFailedError, match="No space left on device"):
        disk.measure(task_of(folder=str(tmp_path)))

    def other(**_):
        class Lies(io.FileIO):
            def read(self, size):
                return bytes(size)

        return Lies(tmp_path / "file", "w+")

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", other)
    with pytest.raises(CheckFailedError, match="is not what was written"):
        disk.measure(task_of(folder=str(tmp_path)))


def test_disk_without_a_folder_is_skipped():
    with pytest.raises(NotHereError, match="no folder was given"):
        disk.measure(task_of())


def test_loopback_finds_bytes_that_were_changed():
    class Bad:
        def __init__(self):
            self.parcels = [loopback._PARCEL, b"\0" * len(loopback._PARCEL)]

        def recv_into(self, buffer, flags):
            parcel = self.parcels.pop(0)
            buffer[: len(parcel)] = parcel
            return len(parcel)

    with pytest.raises(CheckFailedError, match="parcel 1 is not what was sent"):
        loopback._receive(Bad())


def test_loopback_whose_sender_runs_out_of_memory_ends(monkeypatch):
    class Clock:
        def monotonic(self):
            if threading.current_thread() is not threading.main_thread():
                raise MemoryError
            return 0.0

    monkeypatch.setattr(loopback, "time", Clock())
    with pytest.raises(MemoryError):
        loopback._rate("127.0.0.1", 1.0)


def test_address_that_is_not_of_this_node_is_a_failure():
    with pytest.raises(
        CheckFailedError, match=r"192\.0\.2\.1 is no address of this node"
    ):
        loopback.measure(task_of(address="192.0.2.1"))


def test_own_address_is_measured_where_there_is_one():
    addresses = [
        one.address
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    if not addresses:
        pytest.skip("this machine has the loopback address only")
    found = loopback.measure(task_of(address=addresses[0]))
    assert found.measures["own_address_gb_per_s"] > 0


def test_pair_exchanges_over_the_store_of_its_parents(tmp_path, benches):
    store = HashStore()
    config = config_of(tmp_path, checks=("exchange", "gpu_exchange"))
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(measure_node, one, config, node, ("a", "b"), store)
            for node, one in zip("ab", benches, strict=True)
        ]
        first, second = (one.result() for one in running)
    assert first.is_good, first
    assert set(first.measures) == {
        "network_all_gather_gb_per_s",
        "network_all_reduce_gb_per_s",
    }
    assert first.received == second.received != ""


def test_partner_that_does_not_come_is_a_failure_of_the_network(tmp_path, bench):
    config = config_of(tmp_path, checks=("exchange",), round_s=0.5, limit_s=0.3)
    report = measure_node(bench, config, "a", ("a", "b"), HashStore())
    assert report.network_failure == "exchange: b did not come"
    assert not report.failures


def test_partner_that_dies_in_the_exchange_is_a_failure_of_the_network(tmp_path, bench):
    store = HashStore()
    store.set("exchange/here/b", "")
    config = config_of(tmp_path, checks=("exchange",), limit_s=1.0)
    bench_of = Bench(config)
    bench_of._server, bench_of._control = bench._server, bench._control
    report = measure_node(bench_of, config, "a", ("a", "b"), store)
    assert report.network_failure.startswith("exchange: ")
    assert not report.failures


def test_group_of_ranks_receives_what_was_sent_and_finds_what_was_not():
    class Group:
        """Two ranks of which one sends what is given here."""

        def __init__(self, spoil):
            self.spoil = spoil

        def rank(self):
            return 0

        def size(self):
            return 2

        def wait(self):
            pass

        def allgather(self, outputs, inputs):
            outputs[0][0].copy_(inputs[0])
            outputs[0][1].copy_(torch.arange(9, 9 + len(inputs[0])))
            if self.spoil == "gather":
                outputs[0][1][5] ^= 1 << 40
            return self

        def allreduce(self, tensors):
            tensors[0].add_(torch.arange(9, 9 + len(tensors[0])))
            if self.spoil == "reduce":
                tensors[0][3] += 1
            return self

    def run(spoil):
        device = torch.device("cpu")
        return collectives.exchange(
            Group(spoil), device, prefix="network", synchronize=lambda: None
        )

    assert len(run("").received) == 32
    with pytest.raises(
        CheckFailedError, match="1 of 524288 words of rank 1 have arrived"
    ):
        run("gather")
    with pytest.raises(CheckFailedError, match="the sum over 2 nodes is not"):
        run("reduce")


class Line:
    """The other end answers at once."""

    def __init__(self, store):
        self.store, self.replies = store, []

    def write(self, text):
        reply = answer_store(self.store, json.loads(text), most_s=0.05)
        self.replies.append(json.dumps(reply))

    def flush(self):
        pass

    def readline(self):
        return self.replies.pop(0)


def test_store_of_the_parent_does_what_the_real_one_does():
    real = HashStore()
    store = ParentStore(Line(real))
    store.set("k", b"\0\xff")
    assert real.get("k") == store.get("k") == b"\0\xff"
    assert store.add("n", 2) == 2
    store.multi_set(["x", "y"], [b"1", "2"])
    assert store.multi_get(["x", "y"]) == [b"1", b"2"]
    store.wait(["k", "n"])
    assert store.check(["k"])
    assert not store.check(["missing"])
    assert store.delete_key("k")
    assert not store.has_extended_api()
    with pytest.raises(DistStoreError):
        store.get("missing")
    with pytest.raises(DistStoreError, match="no operation 'rmdir'"):
        store._ask("rmdir")


def test_ports_are_read_as_the_kernel_shows_them(tmp_path):
    def port(device, number, **texts):
        place = tmp_path / device / "ports" / number
        place.mkdir(parents=True)
        for name, text in texts.items():
            (place / name).write_text(text)

    port("mlx5_0", "1", state="4: ACTIVE\n", rate="400 Gb/sec (4X NDR)\n")
    port("mlx5_1", "1", state="1: DOWN\n", rate="2.5 Gb/sec (1X SDR)\n")
    port("mlx5_2", "1", rate="fast\n")
    assert read_ports(tmp_path) == [
        Port("mlx5_0", 1, "ACTIVE", 400.0),
        Port("mlx5_1", 1, "DOWN", 2.5),
        Port("mlx5_2", 1, "", 0.0),
    ]
    assert read_ports(tmp_path / "none") == []


@pytest.fixture
def perftest(tmp_path, monkeypatch):
    """Two active devices, and a program in the place of ib_write_bw."""
    devices = tmp_path / "infiniband"
    for name in ("mlx5_0", "mlx5_1"):
        place = devices / name / "ports" / "1"
        place.mkdir(parents=True)
        (place / "state").write_text("4: ACTIVE\n")
    monkeypatch.setattr(rdma, "_DEVICES", devices)

    def install(script):
        tool = tmp_path / "ib_write_bw"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


WAITS = 'case "$*" in *127.0.0.1*|*--help*) ;; *) echo "* Waiting for client"; '
WAITS += "exec sleep 600;; esac\n"


def test_rdma_is_what_the_tool_says(perftest):
    perftest(f"{WAITS}echo ' 65536 5000 197.51 197.48 0.37'")
    assert rdma.measure(task_of()).measures == {"rdma_gbit_per_s": 197.48}


def test_rdma_of_a_gpu_is_measured_where_the_tool_can(perftest):
    perftest(
        f"{WAITS}case \"$*\" in *--help*) echo '--use_cuda=<id>';; "
        "*--use_cuda=0*) echo '65536 9 90 80.5 1';; *) echo '65536 9 99 98.5 1';; esac"
    )
    found = rdma.measure(task_of()).measures
    assert found == {"rdma_gbit_per_s": 98.5, "rdma_gpu_gbit_per_s": 80.5}


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (f"{WAITS}echo 'Unable to connect'", "no rate: Unable to connect"),
        ("echo 'no device'; exit 1", "no rate: no device"),
        ("exit 1", "no rate: nothing at all"),
    ],
)
def test_rdma_tool_that_fails_is_a_failure(perftest, script, says):
    perftest(script)
    with pytest.raises(CheckFailedError, match=says):
        rdma.measure(task_of())


def test_rdma_tool_that_hangs_is_given_up(perftest):
    perftest(f"{WAITS}exec sleep 600")
    with pytest.raises(CheckFailedError, match="timed out after"):
        rdma.measure(task_of(limit_s=0.2))


def test_rdma_is_skipped_without_the_tool_or_the_devices(perftest, monkeypatch):
    perftest("exit 0")
    monkeypatch.setattr(rdma, "_DEVICES", Path("/nonexistent"))
    with pytest.raises(NotHereError, match="two active RDMA devices, there are 0"):
        rdma.measure(task_of())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NotHereError, match="which the package perftest has"):
        rdma.measure(task_of())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"checks": ("compute", "speed")},
            "checks must be one or more of .* got speed",
        ),
        ({"checks": ()}, "got none"),
        ({"measure_s": float("nan")}, "measure_s must be"),
        ({"limit_s": float("inf")}, "limit_s must be"),
        ({"limit_s": 0.2, "measure_s": 0.5}, "limit_s must be more than measure_s"),
        ({"limit_s": 200.0}, "round_s must be more than limit_s"),
        ({"num_threads": 0}, "num_threads must be"),
        ({"memory_bytes": 1}, "memory_bytes must be"),
        ({"folder": "/nonexistent"}, "folder must be a folder that exists"),
    ],
)
def test_configuration_that_makes_no_sense_is_refused(options, says):
    with pytest.raises(ProgramError, match=says):
        CheckConfig(**options)


@pytest.mark.slow
def test_slow_node_of_four_is_named(tmp_path, bench, watcher):
    """The nodes measure one after the other here, and one of them gets little time."""
    config = config_of(tmp_path, checks=("compute",))
    store, turn = HashStore(), threading.Lock()

    def run(node):
        def measure(group, store_of_round):
            with turn, contextlib.ExitStack() as stack:
                if node == "d":
                    braked = functools.partial(faults.slow, share=0.05)
                    watcher(bench, lambda child: stack.enter_context(braked(child.pid)))
                return measure_node(bench, config, node, group, store_of_round)

        return confer(store, node, 4, config, measure).verdict

    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(run, "abcd"))
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert verdicts[0].slow == ("d",), verdicts[0]
    assert verdicts[0].opinions["d"].measure == "compute_gflops"
