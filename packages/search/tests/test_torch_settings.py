"""What a process has set in torch is what its trials set."""

import subprocess
import sys

import pytest
import torch

from drivetrain_search.cache.cache_key import surroundings
from drivetrain_search.process.torch_settings import apply_settings, read_settings


@pytest.fixture(autouse=True)
def as_before():
    before = read_settings()
    yield
    apply_settings(before)


def test_settings_are_read_and_set_again():
    before = read_settings()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_dtype(torch.float64)
    torch.autograd.set_detect_anomaly(True)
    torch.backends.cuda.enable_math_sdp(False)
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch._C._set_mkldnn_enabled(False)
    can_flush = torch.set_flush_denormal(True)
    changed = read_settings()
    same = {name for name in before if before[name] == changed[name]}
    assert same == (set() if can_flush else {"denormal"})
    apply_settings(before)
    assert read_settings() == before
    apply_settings(changed)
    assert read_settings() == changed
    assert torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.slow
def test_denormals_are_seen_whatever_the_default_dtype_and_device_are():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU does not flush denormals")
    torch.set_default_dtype(torch.float64)
    with torch.device("meta"):
        assert read_settings()["denormal"]
        torch.set_flush_denormal(False)
        assert not read_settings()["denormal"]


def test_trials_of_other_settings_are_not_read_again():
    before = surroundings("cpu")
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert surroundings("cpu") != before


@pytest.mark.slow
def test_closed_descriptors_are_opened_before_a_pipe_can_take_their_number():
    code = (
        "import os; [os.close(n) for n in (0, 2)]\n"
        "from drivetrain_search.service import _open_standard_descriptors as call\n"
        "call(); [os.fstat(n) for n in range(3)]\n"
        "assert os.open(os.devnull, os.O_RDONLY) >= 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
