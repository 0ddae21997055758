"""The registration of memory with a device, which only counts here."""

import functools
import gc
import types

import pytest
import torch

from drivetrain_checkpoint._save import device_copy
from drivetrain_checkpoint.dcp._stager import _Generation

ARENA = types.SimpleNamespace(address=4096, size_bytes=8192)


class Device:
    """Registers the memory that it is asked to, or says why not."""

    def __init__(self, refusal=""):
        self.refusal, self.registered = refusal, []

    def register_host_memory(self, address, size_bytes):
        if not self.refusal:
            self.registered.append(address)
        return self.refusal

    def unregister_host_memory(self, address):
        self.registered.remove(address)


@pytest.fixture
def link_with(monkeypatch):
    def make(device):
        monkeypatch.setattr(device_copy, "accelerator_of", lambda device_type: device)
        return device_copy.DeviceLink("cuda", ARENA.address, ARENA.size_bytes, ARENA)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("way", ["close", "drop"])
def test_device_link_gives_memory_back(link_with, way):
    device = Device()
    link = link_with(device)
    assert link._release.alive
    assert device.registered == [ARENA.address]
    if way == "close":
        link.close()
        link.close()
        assert not link._release.alive
    else:
        del link
        gc.collect()
    assert device.registered == []


def test_device_link_that_is_refused_says_why(link_with, caplog):
    link = link_with(Device(refusal="error 712"))
    assert link._release is None
    assert "not page-locked (error 712)" in caplog.text
    link.close()


def test_copies_of_each_device_are_queued_behind_its_own_work(link_with, monkeypatch):
    done, now = [], []

    class Stream:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            now.append(self)

        def __exit__(self, *error):
            now.pop()

        def wait_stream(self, other):
            done.append((self.device.index, "waits for", other))

        def synchronize(self):
            done.append((self.device.index, "is waited for"))

    class Event:
        def __init__(self, device):
            self.device = device

        def record(self, stream):
            assert stream is now[-1]
            assert stream.device == self.device

    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(
        torch.accelerator, "current_stream", lambda d: f"work of {d.index}"
    )
    devices = [torch.device("cuda", n) for n in range(2)]

    def copy(device):
        assert now[-1].device == device
        done.append((device.index, "copies"))

    link = link_with(Device())
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
    device = Device()
    monkeypatch.setattr(device_copy, "accelerator_of", lambda device_type: device)
    generation = _Generation()
    generation.hand_out(10_000)
    for _ in range(2):
        generation.register("cuda")
    (first,) = device.registered
    # A larger state takes other memory, whatever lies where the old one was.
    generation.hand_out(1 << 20)
    assert device.registered == []
    generation.register("cuda")
    assert len(device.registered) == 1
    generation._link.close()
    assert device.registered == []
    assert first
