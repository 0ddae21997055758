"""What is told of a machine: the same of any vendor's device, and by name what is not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import facts
import pytest

from drivetrain_core.accelerators import AcceleratorFacts, TorchAccelerator

ROOT = Path(__file__).parents[2]
H200 = json.loads((ROOT / "docs/benchmarks/gpu_h200_202611.json").read_text())
RATES = ["bf16_tflops", "copy_tb_per_s", "to_host_gb_per_s", "from_host_gb_per_s"]
WARP = AcceleratorFacts(
    type="cpu",
    name="Warp 7",
    memory_bytes=1 << 20,
    dtypes=("float32",),
    collectives="warpccl",
)


class Warp(TorchAccelerator):
    """A device of another vendor; what it computes, the CPU does."""

    def __init__(self, told=WARP):
        super().__init__("cpu")
        self.told = told

    def device_count(self):
        return 3

    def facts(self, index=0):
        return self.told

    def driver(self):
        return "7.1"


@pytest.fixture
def warp(monkeypatch):
    """Puts devices of another vendor into this machine."""
    found = Warp()
    monkeypatch.setattr(facts, "find_accelerator", lambda: found)
    return found


def test_cuda_device_is_told_as_in_the_published_report():
    (published,) = H200["runs"][0]["hardware"]["gpus"]
    major, minor = published["capability"].split(".")
    told = AcceleratorFacts(
        type="cuda",
        name=published["name"],
        memory_bytes=published["memory_bytes"],
        capability=(int(major), int(minor)),
        num_processors=published["multiprocessors"],
    )
    properties = SimpleNamespace(L2_cache_size=published["l2_bytes"])
    assert facts.describe(told, properties) == published


def test_machine_without_a_device_is_told_too(monkeypatch):
    monkeypatch.setattr(facts, "find_accelerator", lambda: None)
    told = facts.measure()
    published = H200["runs"][0]
    assert told["hardware"]["gpus"] == []
    assert told["hardware"]["accelerator"] is None
    assert told["hardware"].keys() >= published["hardware"].keys()
    assert told["versions"].keys() >= published["versions"].keys()
    assert (told["left_out"], told["ceilings"]) == ({}, {})


def test_device_of_another_vendor_is_told_and_what_is_not_known_is_named(warp):
    told = facts.measure(dry_run=True)
    first = told["hardware"]["accelerator"]
    assert (first["count"], first["name"]) == (3, "Warp 7")
    assert (first["dtypes"], first["collectives"]) == (("float32",), "warpccl")
    assert told["hardware"]["gpus"] == [{"name": "Warp 7", "memory_bytes": 1 << 20}] * 3
    assert told["versions"]["driver"] == "7.1"
    names = {"capability", "multiprocessors", "l2_bytes", "nccl", "accelerator"}
    assert set(told["left_out"]) >= names | {"ceilings"}
    assert "driver" not in told["left_out"]
    json.dumps(told)


def test_ceilings_need_what_the_device_has(monkeypatch, warp):
    monkeypatch.setattr(facts, "_MEASURE_S", 0.0)
    rates, without = facts.ceilings(warp, side=8)
    assert list(rates) == ["copy_tb_per_s"]
    assert without["bf16_tflops"] == "Warp 7 computes in float32"
    assert set(without) == {*RATES} - {*rates}
    able = Warp(dataclasses.replace(WARP, dtypes=("bfloat16",)))
    rates, without = facts.ceilings(able, side=8)
    assert list(rates) == RATES[:2]
    assert all(rate > 0 for rate in rates.values())


@pytest.mark.simulated_accelerator
def test_simulated_device_is_told(monkeypatch):
    from drivetrain_simulated_accelerator._load import loaded_settings

    settings = loaded_settings()
    told = facts.measure(dry_run=True)
    first = told["hardware"]["accelerator"]
    assert (first["type"], first["count"]) == ("sim", settings.devices)
    assert first["name"] == "simulated accelerator"
    assert first["memory_bytes"] == settings.memory_bytes
    assert ("bfloat16" in first["dtypes"]) == settings.bf16
    assert first["collectives"] == "simccl"
    assert len(told["hardware"]["gpus"]) == settings.devices
    assert told["versions"]["accelerator"].startswith("simulated")
    assert {"capability", "nccl", "cuda", "ceilings"} <= set(told["left_out"])
    monkeypatch.setattr(facts, "_MEASURE_S", 0.0)
    found = facts.find_accelerator()
    rates, without = facts.ceilings(found, side=64, most_bytes=1 << 16)
    assert {*rates, *without} == {*RATES}
    assert all(rate > 0 for rate in rates.values())
