"""The registration of memory with CUDA, with a CUDA that only counts."""

import gc
import types

import pytest
import torch

from drivetrain_checkpoint._save import device_copy

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
        stream = types.SimpleNamespace(synchronize=lambda: None)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
        return device_copy.DeviceLink(ARENA, torch.device("cuda", 0))

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
