"""The allocator as an optimization of core."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch

import drivetrain_memory
from drivetrain_core import Choice, Code, Numerics, Ok, Phase, Slot
from drivetrain_memory import _enable
from drivetrain_memory._register import VirtualMemoryOptimization
from drivetrain_testing import check_optimization


class Device:
    def __init__(self, kind):
        self.type = self.name = kind


class Facts:
    def __init__(self, kind):
        self.device = Device(kind)


def test_optimization_keeps_the_contract():
    check_optimization(VirtualMemoryOptimization())


def test_it_is_exact_and_for_gpus_alone():
    optimization = VirtualMemoryOptimization()
    assert (optimization.slot, optimization.phase) == (
        Slot.ALLOCATOR,
        Phase.ENVIRONMENT,
    )
    assert optimization.numerics({}) == Numerics.EXACT
    assert list(optimization.configs(Facts("cpu"))) == []
    assert list(optimization.configs(Facts("cuda"))) == [{"headroom": None}]
    refused = optimization.check(Facts("cpu"), {}, [])
    assert refused.code == Code.NEEDS_DEVICE


def test_it_is_found_by_its_entry_points():
    (found,) = entry_points(group="drivetrain.optimizations", name="virtual_memory")
    assert found.load() is VirtualMemoryOptimization
    (command,) = entry_points(group="drivetrain.commands", name="memory")
    assert command.load().__module__ == "drivetrain_memory.cli"


def test_process_that_uses_cuda_already_is_refused(monkeypatch):
    optimization = VirtualMemoryOptimization()
    assert isinstance(optimization.check(Facts("cuda"), {}, []), Ok)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    refused = optimization.check(Facts("cuda"), {}, [])
    assert refused.code == Code.ORDER
    assert "enable()" in refused.fix
    monkeypatch.setitem(_enable._state, "allocator", object())
    assert isinstance(optimization.check(Facts("cuda"), {}, []), Ok)


def test_trees_of_graphs_are_excluded():
    optimization = VirtualMemoryOptimization()
    graphs = Choice("compile_select", {"choice": "cudagraphs"})
    refused = optimization.check(Facts("cuda"), {}, [graphs])
    assert refused.code == Code.CONFLICT
    other = Choice("compile_select", {"choice": "max-autotune"})
    assert isinstance(optimization.check(Facts("cuda"), {}, [other]), Ok)


@pytest.mark.parametrize("before", [False, True])
def test_apply_enables_it_once(monkeypatch, before):
    asked = []
    monkeypatch.setattr(
        drivetrain_memory, "enable", lambda **options: asked.append(options)
    )
    monkeypatch.setattr(drivetrain_memory, "is_enabled", lambda: before)
    VirtualMemoryOptimization().apply(None, {"headroom": 0.1})
    assert asked == ([] if before else [{"headroom": 0.1}])


def test_registration_does_not_import_torch():
    code = "import sys, drivetrain_memory._register; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
