"""The driver is asked for GPUs; whatever it does, the caller goes on."""

# ruff: noqa: N802, N815

import sys
import threading
from types import SimpleNamespace

import pytest

from drivetrain_health.diagnosis import GpuWatch, _gpus
from drivetrain_health.diagnosis._gpus import visible_gpus
from drivetrain_health.failures import ErrorRecord, Evidence, diagnose


class NvmlError(Exception):
    """As pynvml's: the number of the error is its value."""

    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


UNSUPPORTED, LOST, TIMEOUT = 3, 15, 10


class FakeNvml:
    """Two GPUs, of which anything may be changed; calls may fail, or wait."""

    NVMLError = NvmlError
    NVML_ERROR_NOT_SUPPORTED = UNSUPPORTED
    NVML_ERROR_GPU_IS_LOST = LOST
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_NVLINK_ERROR_DL_REPLAY = 0
    NVML_NVLINK_ERROR_DL_RECOVERY = 1
    NVML_NVLINK_ERROR_DL_CRC_FLIT = 2
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, num=2):
        self.num = num
        self.ecc = [4] * num
        self.links = [[1, 1]] * num
        self.replays = [0] * num
        self.rows = [(0, 0, 0, 0)] * num
        self.recovery = [0] * num
        self.reasons = [0] * num
        self.events = []
        self.fail = {}
        self.gate = None

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if not name.startswith("nvml") or not callable(found):
            return found

        def call(*arguments):
            if self.gate is not None:
                self.gate.wait()
            wrong = self.fail.get(name) or self.fail.get("*")
            if wrong is not None:
                raise wrong
            return found(*arguments)

        return call

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        self.num = 0

    def nvmlDeviceGetCount(self):
        return self.num

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{gpu}".encode()

    def nvmlDeviceGetName(self, gpu):
        return b"NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return SimpleNamespace(used=3 << 30, total=141 << 30)

    def nvmlDeviceGetUtilizationRates(self, gpu):
        return SimpleNamespace(gpu=87, memory=10)

    def nvmlDeviceGetTotalEccErrors(self, gpu, kind, counter):
        return self.ecc[gpu]

    def nvmlDeviceGetRemappedRows(self, gpu):
        return self.rows[gpu]

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        return 61

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):
        return self.reasons[gpu]

    def nvmlDeviceGetFieldValues(self, gpu, fields):
        value = SimpleNamespace(uiVal=self.recovery[gpu])
        return [SimpleNamespace(nvmlReturn=0, value=value)]

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        if link >= len(self.links[gpu]):
            raise NvmlError(UNSUPPORTED)
        return self.links[gpu][link]

    def nvmlDeviceGetNvLinkErrorCounter(self, gpu, link, kind):
        return self.replays[gpu]

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlEventSetFree(self, events):
        pass

    def nvmlDeviceRegisterEvents(self, gpu, kinds, events):
        pass

    def nvmlEventSetWait_v2(self, events, timeout_ms):
        if not self.events:
            raise NvmlError(TIMEOUT)
        gpu, xid = self.events.pop(0)
        return SimpleNamespace(device=gpu, eventData=xid)


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeNvml()


def cause_of(gpus):
    return diagnose(Evidence(worker="a", node="n", exit_code=1, gpus=gpus)).cause


def test_healthy_gpus_have_nothing_to_tell(nvml):
    with GpuWatch(nvml) as watch:
        first, second = watch.read()
    assert (first.uuid, second.uuid) == ("GPU-0", "GPU-1")
    assert (second.index, second.temperature_c, second.missing) == (1, 61.0, "")
    assert (first.name, first.busy_share) == ("NVIDIA H200", 0.87)
    assert (first.memory_used, first.memory_total) == (3 << 30, 141 << 30)
    # Errors of before are none of this job's.
    assert second.ecc_uncorrected == 0
    assert watch.why_missing == ""
    assert cause_of((first, second)) == "exit-1"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda n: n.events.append((1, 79)), "xid-79"),
        (lambda n: n.ecc.__setitem__(1, 6), "ecc-uncorrected"),
        (lambda n: n.rows.__setitem__(1, (0, 1, 1, 1)), "remap-failed"),
        (lambda n: n.recovery.__setitem__(1, 2), "needs-reset"),
        (lambda n: n.recovery.__setitem__(1, 3), "nvlink-error"),
        (lambda n: n.links.__setitem__(1, [1, 0]), "nvlink-down"),
        (lambda n: n.replays.__setitem__(1, 5_000), "nvlink-error"),
    ],
    ids=["xid", "ecc", "rows", "reset", "drain", "link", "replays"],
)
def test_change_is_found_and_is_the_cause(nvml, change, cause):
    with GpuWatch(nvml) as watch:
        change(nvml)
        gpus = watch.read()
    found = diagnose(
        Evidence(worker="a", node="n", output="ncclRemoteError", exit_code=1, gpus=gpus)
    )
    assert found.cause == cause
    assert "GPU 1" in found.reason


def test_gpu_that_is_lost_midway_is_told_by_what_was_known_of_it(nvml):
    with GpuWatch(nvml) as watch:
        nvml.fail["*"] = NvmlError(LOST)
        gpus = watch.read()
        assert [one.is_lost for one in gpus] == [True, True]
        assert gpus[0].uuid == "GPU-0"
        assert cause_of(gpus) == "gpu-lost"


def test_throttled_gpu_is_told(nvml):
    with GpuWatch(nvml) as watch:
        nvml.reasons[0] = 0x40
        nvml.reasons[1] = 0x1  # idle
        assert [one.is_throttled for one in watch.read()] == [True, False]


def test_events_that_are_known_are_kept(nvml):
    with GpuWatch(nvml) as watch:
        nvml.events += [(0, 13), (0, 45)]
        watch.read()
        nvml.events.append((0, 31))
        assert watch.read()[0].xids == (13, 45, 31)


@pytest.mark.parametrize(
    "wrong", [NvmlError(UNSUPPORTED), NvmlError(999), AttributeError("no such call")]
)
@pytest.mark.parametrize(
    "call",
    [
        "nvmlEventSetCreate",
        "nvmlDeviceRegisterEvents",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
    ],
)
def test_call_that_fails_leaves_the_others(nvml, call, wrong):
    nvml.fail[call] = wrong
    with GpuWatch(nvml) as watch:
        nvml.ecc[1] += 1
        gpus = watch.read()
    assert len(gpus) == 2
    if call != "nvmlDeviceGetTotalEccErrors":
        assert gpus[1].ecc_uncorrected == 1
    assert cause_of(gpus) in {"ecc-uncorrected", "exit-1"}


@pytest.mark.parametrize(
    "wrong", [NvmlError(9), OSError("libnvidia-ml.so.1"), KeyError(1)]
)
def test_driver_that_is_not_there_is_said(nvml, wrong):
    nvml.fail["nvmlInit"] = wrong
    with GpuWatch(nvml) as watch:
        assert watch.read() == ()
        assert str(wrong) in watch.why_missing
        # It may be loaded later.
        nvml.fail.clear()
        assert len(watch.read()) == 2
        assert watch.why_missing == ""


def test_library_that_is_not_installed_names_the_extra(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("drivetrain_health.diagnosis._gpus.import_module", missing)
    watch = GpuWatch()
    assert watch.read() == ()
    assert 'pip install "drivetrain-health[nvml]"' in watch.why_missing
    watch.close()


@pytest.mark.parametrize("has_driver", [True, False])
def test_machine_without_a_driver_is_not_told_that_it_has_none(
    monkeypatch, tmp_path, caplog, has_driver
):
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr(_gpus, "_DRIVERS", (str(device),))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    caplog.set_level("INFO")
    if has_driver:
        device.touch()
    GpuWatch().close()
    assert ("GPUs are not watched" in caplog.text) == has_driver


def test_driver_that_hangs_keeps_nobody(nvml):
    with GpuWatch(nvml, timeout_s=0.05) as watch:
        assert len(watch.read()) == 2
        threads = set(threading.enumerate())
        nvml.gate = threading.Event()
        for _ in range(3):
            gpus = watch.read()
            assert [one.missing for one in gpus] == [watch.why_missing] * 2
        assert "did not answer within 0.05 s" in watch.why_missing
        assert set(threading.enumerate()) <= threads
        nvml.ecc[0] += 1
        nvml.gate.set()
        nvml.gate = None
        watch._timeout_s = 10.0
        assert watch.read()[0].ecc_uncorrected == 1
        assert watch.why_missing == ""


def test_real_library_says_why_there_is_nothing_or_reads():
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    with GpuWatch() as watch:
        assert bool(watch.read()) != bool(watch.why_missing) or not watch.read()


def test_what_happened_long_ago_explains_nothing_now():
    nvml, now = FakeNvml(), [0.0]
    with GpuWatch(nvml, within_s=60.0, clock=lambda: now[0]) as watch:
        nvml.ecc[0] = 5
        nvml.links[0] = [1, 0]
        nvml.events.append((0, 94))
        before = watch.read()[0]
        assert (before.ecc_uncorrected, before.nvlinks_down, before.xids) == (
            1,
            1,
            (94,),
        )
        now[0] = 59.0
        assert watch.read()[0].xids == (94,)
        now[0] = 119.5
        after = watch.read()[0]
        assert (after.ecc_uncorrected, after.nvlinks_down, after.xids) == (0, 0, ())
        error = ErrorRecord("KeyError", "'lr'")
        found = diagnose(Evidence(worker="a/0", node="a", error=error, gpus=(after,)))
        assert (found.failure_class, found.node) == ("program", "")


def test_old_xid_counts_as_long_as_the_gpu_needs_a_reset():
    nvml, now = FakeNvml(), [0.0]
    with GpuWatch(nvml, within_s=60.0, clock=lambda: now[0]) as watch:
        nvml.events.append((0, 95))
        nvml.recovery[0] = 1
        watch.read()
        now[0] = 1000.0
        assert watch.read()[0].xids == (95,)
        nvml.recovery[0] = 0
        assert watch.read()[0].xids == ()


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        (" 1, 0 ", [1, 0]),
        ("0,7,1", [0]),
        ("1,1,0", []),
        ("GPU-b2", [1]),
        ("GPU-b", []),
        ("GPU-a,2", [0, 2]),
        ("none", []),
        ("MIG-GPU-a/1/0", [0, 1, 2]),
    ],
)
def test_gpus_of_a_process_are_those_that_cuda_shows_it(said, found):
    assert visible_gpus(said, ["GPU-a", "GPU-b2", "GPU-b3"]) == found


def test_gpu_of_another_job_is_not_looked_at(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with GpuWatch(nvml) as watch:
        nvml.recovery[0] = 2
        nvml.events.append((0, 79))
        (one,) = watch.read()
        assert (one.index, one.uuid, one.xids) == (1, "GPU-1", ())
        nvml.events.append((1, 79))
        assert watch.read()[0].xids == (79,)
    with GpuWatch(FakeNvml(), visible="0,1") as watch:
        assert [one.index for one in watch.read()] == [0, 1]
