"""What NVIDIA's driver says of the GPUs of this node that this process may use."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from drivetrain_health.diagnosis._baseline import Baseline
from drivetrain_health.failures import GpuReading

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

# NVIDIA's, and that of Windows under Linux.
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
_INSTALL = 'pip install "drivetrain-health[nvml]"'
_MOST_LINKS = 36
_MOST_EVENTS = 100
_UNCORRECTED = ("MEMORY_ERROR_TYPE_UNCORRECTED", "VOLATILE_ECC")
# What the driver asks for, by the number that it gives.
_RECOVERY = (
    *("", "gpu-reset", "node-reboot", "drain-p2p"),
    *("drain-and-reset", "drain-p2p", "gpu-reset", "node-reboot"),
)
# Slowed down by the hardware itself: any reason, heat, power.
_SLOWED_BY_HARDWARE = 0x8 | 0x40 | 0x80


def visible_gpus(said: str | None, uuids: Sequence[str]) -> list[int]:
    """Returns which GPUs `CUDA_VISIBLE_DEVICES` leaves to a process, by the driver's index.

    The first word that names none ends the list, and one GPU named twice leaves none, as in
    CUDA and torch ("CUDA C++ Programming Guide", section "CUDA Environment Variables").

    Args:
        said: The variable; None where it is not set.
        uuids: Of all GPUs, in the driver's order.

    Example:
        >>> visible_gpus("3,GPU-b,-1,0", ["GPU-a", "GPU-b", "GPU-c", "GPU-d"])
        [3, 1]
    """
    every = list(range(len(uuids)))
    # Whose part an instance is, only the driver of a GPU that is well can tell.
    if said is None or "MIG-" in said:
        return every
    found: list[int] = []
    for word in said.split(","):
        name = word.strip()
        named = [i for i in every if name in {str(i), uuids[i]}]
        if not named and name.startswith("GPU-"):
            named = [i for i in every if uuids[i].startswith(name)]
        if len(named) != 1:
            break
        found += named
    return found if len(found) == len(set(found)) else []


class GpuWatch:
    """Asks the driver for the state of a job's GPUs; used from one thread at a time.

    All calls are made by a thread of its own. A driver that hangs, as one does whose GPU
    has fallen off the bus, keeps that thread and nobody else.

    Args:
        nvml: The module `pynvml`, or what stands for it in a test; None imports it.
        timeout_s: How long to wait for the driver.
        within_s: How far back a reading looks: what happened before explains nothing that
            happens now.
        clock: Tells the time in seconds, and does not go back.
        visible: Which GPUs are the job's, as `CUDA_VISIBLE_DEVICES` says it; that of this
            process by default, all where it is not set.

    Raises:
        ProgramError: A time is not one.

    Attributes:
        why_missing: Why nothing can be read; empty if it can.
    """

    def __init__(
        self,
        nvml: Any = None,
        *,
        timeout_s: float = 2.0,
        within_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        visible: str | None = None,
    ) -> None:
        self.why_missing = ""
        self._every_s = Baseline[int](within_s).every_s
        self._timeout_s = timeout_s
        self._driver: _Driver | None = None
        self._known: tuple[GpuReading, ...] = ()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending: queue.SimpleQueue[tuple[GpuReading, ...]] | None = None
        if nvml is None:
            try:
                nvml = import_module("pynvml")
            except ImportError:
                self._miss(f"GPUs are asked through nvidia-ml-py: {_INSTALL}")
                return
        if visible is None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._driver = _Driver(nvml, within_s, clock, visible)
        threading.Thread(target=self._run, name="drivetrain-gpus", daemon=True).start()
        self.read()

    def _miss(self, why: str) -> None:
        if why != self.why_missing:
            self.why_missing = why
            # Where no driver is, there is nothing to be watched, nor to be told.
            is_here = any(map(os.path.exists, _DRIVERS))
            level = logging.INFO if is_here else logging.DEBUG
            logger.log(level, "GPUs are not watched: %s", why)

    def _run(self) -> None:
        driver = self._driver
        assert driver is not None
        while True:
            try:
                call = self._calls.get(timeout=self._every_s)
            except queue.Empty:
                # So that there is something to compare with when it is asked for.
                driver.read()
                continue
            if call is None:
                return
            call()

    def read(self) -> tuple[GpuReading, ...]:
        """Returns the state of each GPU, against that of about `within_s` ago.

        Returns:
            As many as there were at first, with what could not be read; nothing without
            GPUs or a driver.
        """
        driver = self._driver
        if driver is None:
            return ()
        if self._pending is None:
            answer: queue.SimpleQueue[tuple[GpuReading, ...]] = queue.SimpleQueue()
            self._pending = answer
            self._calls.put(lambda: answer.put(driver.read()))
        try:
            self._known = self._pending.get(timeout=self._timeout_s)
        except queue.Empty:
            why = f"the driver did not answer within {self._timeout_s:g} s"
            self._miss(why)
            return tuple(
                GpuReading(uuid=one.uuid, index=one.index, missing=why)
                for one in self._known
            )
        self._pending = None
        if driver.why_missing:
            self._miss(driver.why_missing)
        else:
            self.why_missing = ""
        return self._known

    def close(self) -> None:
        """Ends the thread, once the driver has answered; does not wait for it."""
        if self._driver is not None:
            self._calls.put(self._driver.close)
            self._calls.put(None)
            self._driver = None

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


class _Driver:
    """The calls of the driver's library, all from one thread."""

    def __init__(
        self,
        nvml: Any,
        within_s: float,
        clock: Callable[[], float],
        visible: str | None,
    ) -> None:
        self._nvml = nvml
        self._visible = visible
        self._within_s = within_s
        self._clock = clock
        self._is_open = False
        self._gpus: list[_Gpu] = []
        self._events: Any = None
        self.why_missing = ""

    def read(self) -> tuple[GpuReading, ...]:
        """Returns a reading of each GPU; what fails is said in it."""
        try:
            if not self._is_open:
                self._open()
            self._take_events()
            found = tuple(gpu.read(self._clock()) for gpu in self._gpus)
        except Exception as error:  # noqa: BLE001
            # A library that is not there, of another version, or broken: training goes on.
            self.why_missing = f"the driver says: {error}"
            return ()
        self.why_missing = ""
        return found

    def _open(self) -> None:
        nvml = self._nvml
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        now_s = self._clock()
        every = [_Gpu(nvml, index, now_s, self._within_s) for index in range(count)]
        # Those of another job are that job's to move away from.
        ours = visible_gpus(self._visible, [gpu.uuid for gpu in every])
        self._gpus = [every[index] for index in ours]
        self._is_open = True
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            self._events = nvml.nvmlEventSetCreate()
        for gpu in self._gpus if self._events is not None else ():
            # Not each GPU, and not each container, tells of events.
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                nvml.nvmlDeviceRegisterEvents(
                    gpu.handle, nvml.nvmlEventTypeXidCriticalError, self._events
                )

    def _take_events(self) -> None:
        if self._events is None:
            return
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            for _ in range(_MOST_EVENTS):
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
                for gpu in self._gpus:
                    if gpu.uuid == uuid:
                        gpu.xids.append((self._clock(), int(event.eventData)))

    def close(self) -> None:
        """Gives the library back."""
        if not self._is_open:
            return
        with contextlib.suppress(Exception):  # nobody is left to be told
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()


class _Counts(NamedTuple):
    """What the counters of a GPU said: errors of its memory, links that are up, theirs."""

    ecc: int
    up: frozenset[int]
    errors: int


class _Gpu:
    """One GPU, and what its counters said a while ago."""

    def __init__(self, nvml: Any, index: int, now_s: float, within_s: float) -> None:
        self._nvml = nvml
        self._index = index
        self._missing = ""
        self._is_lost = False
        # When each was taken, and its number.
        self.xids: deque[tuple[float, int]] = deque(maxlen=_MOST_EVENTS)
        self.handle = self._try(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        self.uuid = _text(self._ask("UUID") or "")
        self._name = _text(self._ask("Name") or "")
        self._before = Baseline[_Counts](within_s)
        self._counts = _Counts(0, frozenset(), 0)
        self._counts = self._count()
        self._before.add(now_s, self._counts)

    def read(self, now_s: float) -> GpuReading:
        """Returns what it is now; what cannot be read is as it was last."""
        self._missing = ""
        rows = self._ask("RemappedRows")
        now, before = self._count(), self._before.at(now_s)
        self._counts = now
        self._before.add(now_s, now)
        slowed = self._ask("CurrentClocksEventReasons")
        heat = self._ask("Temperature", "TEMPERATURE_GPU")
        recovery = self._recovery()
        memory = self._ask("MemoryInfo")
        busy = self._ask("UtilizationRates")
        return GpuReading(
            uuid=self.uuid,
            index=self._index,
            missing=self._missing,
            is_lost=self._is_lost,
            xids=self._recent_xids(now_s, is_broken=self._is_lost or bool(recovery)),
            recovery=recovery,
            ecc_uncorrected=max(0, now.ecc - before.ecc),
            remap_pending=bool(rows and rows[2]),
            remap_failed=bool(rows and rows[3]),
            nvlink_errors=max(0, now.errors - before.errors),
            nvlinks_down=len(before.up - now.up),
            temperature_c=None if heat is None else float(heat),
            is_throttled=bool(slowed and slowed & _SLOWED_BY_HARDWARE),
            name=self._name,
            busy_share=0.0 if busy is None else busy.gpu / 100,
            memory_used=0 if memory is None else int(memory.used),
            memory_total=0 if memory is None else int(memory.total),
        )

    def _recent_xids(self, now_s: float, *, is_broken: bool) -> tuple[int, ...]:
        """Returns the Xids that may explain what happens now.

        Those of a GPU that is lost, or that needs a reset, say why it still is.
        """
        since_s = now_s - self._before.within_s
        return tuple(xid for at_s, xid in self.xids if is_broken or at_s > since_s)

    def _count(self) -> _Counts:
        ecc = self._ask("TotalEccErrors", *_UNCORRECTED)
        up, errors = self._links()
        last = self._counts
        return _Counts(
            last.ecc if ecc is None else int(ecc),
            *((last.up, last.errors) if up is None else (frozenset(up), errors)),
        )

    def _ask(self, what: str, *constants: str) -> Any:
        """Returns what `nvmlDeviceGet...` says of it, given constants `NVML_...`."""
        nvml = self._nvml
        return self._try(
            lambda: getattr(nvml, f"nvmlDeviceGet{what}")(
                self.handle, *(getattr(nvml, f"NVML_{one}") for one in constants)
            )
        )

    def _try(self, call: Callable[[], Any]) -> Any:
        """Returns what the driver answers; None if it does not know, or cannot tell."""
        nvml = self._nvml
        try:
            return call()
        except nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == nvml.NVML_ERROR_GPU_IS_LOST:
                self._is_lost = True
            if code != nvml.NVML_ERROR_NOT_SUPPORTED:
                self._missing = self._missing or str(error)
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            # Another version of the library, or a driver that does not have the call.
            self._missing = self._missing or f"{type(error).__name__}: {error}"
        return None

    def _recovery(self) -> str:
        nvml = self._nvml
        fields = self._try(
            lambda: nvml.nvmlDeviceGetFieldValues(
                self.handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
            )
        )
        if not fields or fields[0].nvmlReturn != 0:
            return ""
        asked = int(fields[0].value.uiVal)
        return _RECOVERY[asked] if asked < len(_RECOVERY) else ""

    def _links(self) -> tuple[set[int] | None, int]:
        """Returns which NVLinks are up, None if that is not known, and their errors."""
        nvml = self._nvml
        up: set[int] | None = None
        errors = 0
        for link in range(_MOST_LINKS):
            try:
                is_up = nvml.nvmlDeviceGetNvLinkState(self.handle, link)
            except nvml.NVMLError as error:
                if getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST:
                    self._is_lost = True
                # There are no more links, or none at all.
                break
            except AttributeError:
                break
            up = up or set()
            if is_up:
                up.add(link)
                errors += self._errors_of(link)
        return up, errors

    def _errors_of(self, link: int) -> int:
        nvml = self._nvml
        total = 0
        for name in ("REPLAY", "RECOVERY", "CRC_FLIT"):
            kind = getattr(nvml, f"NVML_NVLINK_ERROR_DL_{name}")
            with contextlib.suppress(nvml.NVMLError):
                count = nvml.nvmlDeviceGetNvLinkErrorCounter(self.handle, link, kind)
                total += int(count)
        return total


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
