"""The registration of memory with CUDA, with a CUDA that only counts."""

import contextlib
import functools
import gc
import types

import pytest
import torch

from drivetrain_checkpoint._save import device_copy
from drivetrain_checkpoint.dcp._stager import _Generation

ARENA = types.SimpleNamespace(address=4096, size_bytes=8192)


class Cudart:
    """Registers what it is asked to, or refuses with a code."""

    def __init__(self, code=0):
        self.code, self.registered, self.errors = code, [], []

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        if self.code:
            self.errors.append(self.code)
        else:
            self.registered.append(address)
        return self.code

    def cudaHostUnregister(self, address):  # noqa: N802
        self.registered.remove(address)
        return 0

    def cudaGetLastError(self):  # noqa: N802
        return self.errors.pop() if self.errors else 0


@pytest.fixture
def link_with(monkeypatch):
    def make(cudart):
        monkeypatch.setattr(device_copy, "_cudart", lambda: cudart)
        monkeypatch.setattr(device_copy.ctypes, "CDLL", lambda name: cudart)
        return device_copy.DeviceLink(ARENA.address, ARENA.size_bytes, ARENA)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("way", ["close", "drop"])
def test_device_link_gives_memory_back(link_with, way):
    cudart = Cudart()
    link = link_with(cudart)
    assert link.is_registered
    assert cudart.registered == [ARENA.address]
    if way == "close":
        link.close()
        link.close()
        assert not link.is_registered
    else:
        del link
        gc.collect()
    assert cudart.registered == []


def test_device_link_that_is_refused_leaves_no_error_behind(link_with, caplog):
    cudart = Cudart(code=712)
    link = link_with(cudart)
    assert not link.is_registered
    assert "error 712" in caplog.text
    assert cudart.errors == []
    link.close()


def test_copies_of_each_device_are_queued_behind_its_own_work(link_with, monkeypatch):
    done, now = [], []

    class Stream:
        def __init__(self, device):
            self.device = device

        def wait_stream(self, other):
            done.append((self.device.index, "waits for", other))

        def synchronize(self):
            done.append((self.device.index, "is waited for"))

    class Event:
        def record(self, stream):
            assert stream is now[-1]
            self.device = stream.device

    @contextlib.contextmanager
    def entered(stream):
        now.append(stream)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda d: f"work of {d.index}")
    devices = [torch.device("cuda", n) for n in range(2)]

    def copy(device):
        assert now[-1].device == device
        done.append((device.index, "copies"))

    link = link_with(Cudart())
    copies = {device: functools.partial(copy, device) for device in devices}
    for _ in range(2):
        assert [event.device for event in link.begin(copies)] == devices
        both = [(n, what) for n in (0, 1) for what in ("waits for", "copies")]
        assert [(n, what) for n, what, *_ in done] == both
        assert [rest for _, _, *rest in done if rest] == [["work of 0"], ["work of 1"]]
        done.clear()
    # Memory is given back once no device copies into it.
    link.close()
    assert done == [(0, "is waited for"), (1, "is waited for")]


def test_memory_of_a_stager_is_registered_once_and_given_back(monkeypatch):
    cudart = Cudart()
    monkeypatch.setattr(device_copy, "_cudart", lambda: cudart)
    generation = _Generation()
    generation.hand_out(10_000)
    for _ in range(2):
        generation.register()
    (first,) = cudart.registered
    # A larger state takes other memory, whatever lies where the old one was.
    generation.hand_out(1 << 20)
    assert cudart.registered == []
    generation.register()
    assert len(cudart.registered) == 1
    generation._link.close()
    assert cudart.registered == []
    assert first
