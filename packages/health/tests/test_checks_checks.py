"""Measurements of a node: what they find, what they skip, and what becomes of those that hang."""

import contextlib
import functools
import io
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed import DistStoreError, HashStore

from drivetrain_core import DistributedError, ProgramError
from drivetrain_core._processes.child_process import servers
from drivetrain_health import checks as health
from drivetrain_health import faults
from drivetrain_health.checks import CHECKS, CheckConfig
from drivetrain_health.checks import _bench as bench
from drivetrain_health.checks import _collectives as collectives
from drivetrain_health.checks import _disk as disk
from drivetrain_health.checks import _loopback as loopback
from drivetrain_health.checks._answer_store import answer_store
from drivetrain_health.checks._bench import BenchResult, _messages, _tell, measure_apart
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


def servers_of_measurements():
    """The processes that fork measurements for this one, others' left aside."""
    found = [psutil.Process(one) for one in servers() if psutil.pid_exists(one)]
    return [
        one for one in found if "drivetrain_health.checks._measure" in one.cmdline()
    ]


def forked():
    """The measurements that are under way, soon enough to be met."""
    for server in servers_of_measurements():
        listed = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        with contextlib.suppress(OSError):
            yield from map(int, listed.read_text().split())


@pytest.fixture
def watcher(tmp_path):
    """Does something to the next measurement that is forked."""
    threads = []

    def watch(act):
        measure_apart("nic", config_of(tmp_path), limit_s=60)
        before, stop = set(forked()), threading.Event()

        def run():
            while not stop.is_set():
                for child in set(forked()) - before:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        act(psutil.Process(child))
                    return

        threads.append((threading.Thread(target=run), stop))
        threads[-1][0].start()

    yield watch
    for thread, stop in threads:
        stop.set()
        thread.join()


def test_package_has_its_names_in_order_and_all_of_them():
    assert health.__all__ == sorted(health.__all__, key=lambda n: (not n.isupper(), n))
    assert all(hasattr(health, name) for name in health.__all__)
    assert set(health.__all__) <= set(dir(health))


@pytest.mark.slow
def test_node_is_measured_and_what_is_not_there_is_skipped_with_a_reason(
    tmp_path,
):
    report = measure_node(config_of(tmp_path), "a")
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
def test_measurement_that_hangs_is_killed_and_says_where_it_was(tmp_path, watcher):
    config, hung = config_of(tmp_path), []

    def stop(child):
        os.kill(child.pid, signal.SIGSTOP)
        hung.append(child)

    watcher(stop)
    outcome = measure_apart("compute", config, limit_s=0.5)
    assert outcome.failed == "no result within 0.5 s"
    assert not hung[0].is_running()
    found = measure_apart("compute", config, limit_s=60).found
    assert found.measures["compute_gflops"] > 0


@pytest.mark.slow
def test_measurement_that_is_killed_says_so_and_others_go_on(tmp_path, watcher):
    config = config_of(tmp_path)
    watcher(lambda child: child.kill())
    outcome = measure_apart("memory", config, limit_s=60)
    assert outcome.failed == ""
    assert outcome.not_made.startswith("its process was killed by SIGKILL from outside")
    assert measure_apart("memory", config, limit_s=60).found


def test_process_that_ends_before_it_is_asked_is_no_error_of_the_asking():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        _tell(ours, {"check": "memory"})
        assert not list(_messages(ours, time.monotonic() + 60))


@pytest.mark.slow
def test_server_that_was_killed_is_replaced(tmp_path):
    config = config_of(tmp_path)
    assert measure_apart("disk", config, limit_s=60).found
    (server,) = servers_of_measurements()
    server.kill()
    server.wait()
    assert measure_apart("disk", config, limit_s=60).found


def test_measurement_that_the_kernel_holds_is_told_and_keeps_nobody(
    tmp_path, monkeypatch
):
    held, reap = [], bench.ForkedProcess.reap

    def hold(child, timeout_s):
        held.append(child)
        raise TimeoutError

    monkeypatch.setattr(bench.ForkedProcess, "reap", hold)
    outcome = measure_apart("memory", config_of(tmp_path), limit_s=0.001)
    assert "no result within 0.001 s" in outcome.failed
    assert outcome.failed.endswith("it cannot be killed, for 5 s now")
    reap(held[0])


def test_server_that_cannot_start_is_no_failure_of_the_node(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "_MODULE", "drivetrain_health.nowhere")
    with pytest.raises(DistributedError, match="what forks measurements ended with"):
        measure_apart("memory", config_of(tmp_path), limit_s=60)


@pytest.mark.slow
def test_error_in_a_measurement_is_its_last_word(tmp_path):
    config = config_of(tmp_path)
    # It was checked when it was made: an error that nobody has foreseen.
    object.__setattr__(config, "num_threads", -1)
    assert measure_apart("compute", config, limit_s=60) == BenchResult(
        failed="its process ended with exit code 1: RuntimeError: set_num_threads "
        "expects a positive integer"
    )


@pytest.mark.slow
def test_check_for_which_memory_does_not_suffice_is_not_made_and_no_fault(
    tmp_path,
):
    config = config_of(tmp_path, checks=("memory", "loopback"))
    # Less than anybody may ask for.
    object.__setattr__(config, "memory_bytes", 1 << 26)
    report = measure_node(config, "a")
    assert report.is_good
    assert list(report.not_made) == ["memory"]
    assert "allocate" in report.not_made["memory"]
    assert "loopback_gb_per_s" in report.measures


def test_checks_after_the_end_of_a_round_are_not_made(tmp_path):
    config = config_of(tmp_path, checks=("compute", "disk"))
    # It was checked when it was made: a round that others have kept waiting.
    object.__setattr__(config, "round_s", 0.0)
    report = measure_node(config, "a")
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


def test_pair_exchanges_over_the_store_of_its_parents(tmp_path):
    store = HashStore()
    config = config_of(tmp_path, checks=("exchange", "gpu_exchange"))
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(measure_node, config, node, ("a", "b"), store) for node in "ab"
        ]
        first, second = (one.result() for one in running)
    assert first.is_good, first
    assert set(first.measures) == {
        "network_all_gather_gb_per_s",
        "network_all_reduce_gb_per_s",
        "network_reduce_scatter_gb_per_s",
    }
    assert first.received == second.received != ""


def test_partner_that_does_not_come_is_a_failure_of_the_network(tmp_path):
    config = config_of(tmp_path, checks=("exchange",), round_s=0.5, limit_s=0.3)
    report = measure_node(config, "a", ("a", "b"), HashStore())
    assert report.network_failure == "exchange: b did not come"
    assert not report.failures


def test_partner_that_dies_in_the_exchange_is_a_failure_of_the_network(tmp_path):
    store = HashStore()
    store.set("exchange/here/b", "")
    config = config_of(tmp_path, checks=("exchange",), limit_s=1.0)
    report = measure_node(config, "a", ("a", "b"), store)
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

        def reduce_scatter(self, outputs, inputs):
            start = 9 + (self.spoil == "scatter")
            num = len(outputs[0])
            outputs[0].copy_(inputs[0][0] + torch.arange(start, start + num))
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
    with pytest.raises(CheckFailedError, match="the part of the sum over 2 nodes"):
        run("scatter")


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
def test_slow_node_of_four_is_named(tmp_path, watcher):
    """The nodes measure one after the other here, and one of them gets little time."""
    config = config_of(tmp_path, checks=("compute",))
    store, turn = HashStore(), threading.Lock()

    def run(node):
        def measure(group, store_of_round, is_whole):
            assert is_whole
            with turn, contextlib.ExitStack() as stack:
                if node == "d":
                    braked = functools.partial(faults.slow, share=0.05)
                    watcher(lambda child: stack.enter_context(braked(child.pid)))
                return measure_node(config, node, group, store_of_round)

        return confer(store, node, 4, config, measure).verdict

    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(run, "abcd"))
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert verdicts[0].slow == ("d",), verdicts[0]
    assert verdicts[0].opinions["d"].measure == "compute_gflops"
