"""Registration of the device: once, on request, and only where nothing is hidden."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from drivetrain_simulated_accelerator import (
    Settings,
    SimulatedAcceleratorError,
    _build,
    is_loaded,
    load,
)
from drivetrain_simulated_accelerator._toolchain import python_abi, source_digest

torch = pytest.importorskip("torch")
testing = pytest.importorskip("drivetrain_simulated_accelerator.testing")

pytestmark = pytest.mark.simulated_accelerator


def raised(function):
    try:
        function()
    except SimulatedAcceleratorError as error:
        return str(error)
    return "nothing"


def test_second_load_does_nothing_or_is_told():
    load()
    load(Settings())
    with pytest.raises(SimulatedAcceleratorError, match=r"devices=2.*not devices=3"):
        load(Settings(devices=3))


def load_beside_another():
    torch.utils.rename_privateuse1_backend("other")
    return raised(load), is_loaded()


def test_other_backend_in_the_process_is_told():
    ended = testing.run_child(load_beside_another, loaded=False)
    assert ended.error == ""
    said, loaded = ended.result
    assert "has a device of another library already, 'other'" in said
    assert not loaded


def load_beside_cuda(asked):
    torch.cuda.is_available = lambda: True
    if asked:
        os.environ["SIMULATED_ACCELERATOR"] = "devices=1"
    said = raised(load)
    return said, is_loaded()


def test_cuda_is_hidden_only_on_request():
    said, loaded = testing.run_child(load_beside_cuda, False, loaded=False).result
    assert "set SIMULATED_ACCELERATOR=1 to want that" in said
    assert not loaded
    assert testing.run_child(load_beside_cuda, True, loaded=False).result == (
        "nothing",
        True,
    )


def load_from(cache):
    os.environ[_build.CACHE_VARIABLE] = cache
    return raised(load)


def test_library_that_is_not_built_is_told(tmp_path):
    ended = testing.run_child(load_from, str(tmp_path), loaded=False)
    assert "not built" in ended.result
    assert "`python -m drivetrain_simulated_accelerator build`" in ended.result
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "facts.json").write_text('{"torch": "1.2.3"}')
    ended = testing.run_child(load_from, str(tmp_path), loaded=False)
    assert "(it is for torch 1.2.3)" in ended.result


def test_library_of_another_torch_is_not_opened(tmp_path):
    name = f"{torch.__version__}-{python_abi()}-{source_digest()}-moved"
    (tmp_path / name).mkdir()
    (tmp_path / name / "_native.so").write_text("no library")
    (tmp_path / name / "facts.json").write_text(json.dumps({"torch": "1.2.3"}))
    ended = testing.run_child(load_from, str(tmp_path), loaded=False)
    assert (
        f"built for torch 1.2.3, and this is torch {torch.__version__}" in ended.result
    )


def load_after_tensors():
    kept = [torch.ones(3), torch.ones(3, device="meta")]
    load()
    return (kept[0].to("sim") + 1).tolist()


def test_device_may_be_loaded_after_tensors_were_made():
    ended = testing.run_child(load_after_tensors, loaded=False)
    assert (ended.result, ended.error) == ([2.0] * 3, "")


PROGRAM = """
import sys
import torch
names = ["drivetrain_simulated_accelerator._load", "drivetrain_core"]
print([name in sys.modules for name in names])
if hasattr(torch, "sim"):
    print(torch.sim.device_count(), torch.sim.is_initialized())
"""


def test_environment_decides_what_torch_loads():
    started = {}
    for name, value in {
        "": None,
        "devices=3": "devices=3",
        "bad": "devices=no",
    }.items():
        environment = dict(os.environ)
        environment.pop("SIMULATED_ACCELERATOR", None)
        if value is not None:
            environment["SIMULATED_ACCELERATOR"] = value
        started[name] = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
    said = {name: process.communicate() for name, process in started.items()}
    assert said[""] == ("[False, False]\n", "")
    assert said["devices=3"] == ("[True, True]\n3 False\n", "")
    assert started["bad"].returncode == 1
    assert "devices is a whole number, not 'no'" in said["bad"][1]
