"""One bit that flips is found, wherever it does, and by whom it was flipped."""

import contextlib

import pytest
import torch
from torch.nn.modules import module as hooks

from drivetrain_core import ProgramError
from drivetrain_health.checks import _silent_corruption as corruption
from drivetrain_health.checks import probe_bits
from drivetrain_health.checks._bits import measure
from drivetrain_health.checks._task import Task
from drivetrain_health.decisions.node_check import judge
from drivetrain_health.decisions.node_pairs import pair
from drivetrain_health.decisions.node_results import NodeCheckConfig, Result


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setattr(corruption, "_NUM_WORDS", 1 << 18)


def flip(tensor, bit=0, at=17):
    """Flips one bit of one value, where it is."""
    words = tensor.detach().view(-1).view(torch.int32)
    words[at] ^= 1 << bit


class Flipper:
    """Flips a bit when it has been called so often; at every call if `always`."""

    def __init__(self, bit, *, always=False, at_call=7):
        self.bit, self.always, self.at_call, self.num = bit, always, at_call, 0

    def is_due(self):
        self.num += 1
        # A repetition passes four linear layers.
        return self.num % 4 == 0 if self.always else self.num == self.at_call

    @contextlib.contextmanager
    def into(self, place):
        register = {
            "weights": hooks.register_module_forward_pre_hook,
            "activations": hooks.register_module_forward_hook,
            "gradients": hooks.register_module_full_backward_hook,
        }[place]
        handle = register(getattr(self, place))
        try:
            yield self
        finally:
            handle.remove()
        assert self.num >= self.at_call

    def weights(self, module, _):
        if isinstance(module, torch.nn.Linear) and self.is_due():
            flip(module.weight, self.bit)

    def activations(self, module, _, output):
        if isinstance(module, torch.nn.Linear) and self.is_due():
            flip(output, self.bit)

    def gradients(self, module, inputs, _):
        if not isinstance(module, torch.nn.Linear) or not self.is_due():
            return None
        spoilt = inputs[0].clone()
        flip(spoilt, self.bit)
        return (spoilt, *inputs[1:])


def test_probe_computes_the_same_bits_each_time_and_whatever_the_settings():
    wanted = probe_bits()
    assert not wanted.differs
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("medium")
    torch.manual_seed(5)
    random = torch.get_rng_state()
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert probe_bits(repeats=3)[:3] == wanted[:3]
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.equal(torch.get_rng_state(), random)
        assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize("place", ["weights", "activations", "gradients"])
@pytest.mark.parametrize("bit", [12, 30])
def test_one_bit_that_flips_once_is_found(place, bit):
    with Flipper(bit).into(place):
        report = probe_bits()
    assert "differs" in report.differs
    assert "2 repetitions on cpu" in report.differs


@pytest.mark.parametrize("place", ["weights", "activations", "gradients"])
def test_bit_that_always_flips_is_found_by_the_other_nodes(place):
    good = probe_bits()
    with Flipper(20, always=True, at_call=4).into(place):
        bad = probe_bits()
    assert not bad.differs
    assert bad.digest != good.digest
    nodes = "abcd"
    rounds = [pair(nodes, [], None)]
    results = [
        Result(0, node, group, received="r", digests={one.build: one.digest})
        for group in rounds[0]
        for node in group
        for one in [bad if node == "b" else good]
    ]
    verdict = judge(nodes, rounds, results, NodeCheckConfig())
    assert verdict.faulty == ("b",)
    assert verdict.opinions["b"].reason == (
        f"computes other bits than 3 of 4 nodes ({good.build})"
    )


def test_weight_that_flips_is_named():
    with Flipper(22, at_call=5).into("weights"):
        report = probe_bits()
    assert "the weight inward.weight differs" in report.differs


@pytest.mark.parametrize("method", ["fill_", "copy_"])
def test_memory_that_gives_back_other_bits_is_found(monkeypatch, method):
    real = getattr(torch.Tensor, method)

    def spoilt(self, value):
        real(self, value)
        if self.dtype == torch.int64 and len(self) == corruption._NUM_WORDS:
            self[12345] ^= 1 << 33
        return self

    monkeypatch.setattr(torch.Tensor, method, spoilt)
    assert "memory gave back 1 words" in probe_bits().differs


def test_check_of_bits_tells_of_the_probe():
    found = measure(Task(0.01, 10.0, 1, None, None, 0, 1, note=lambda _: None))
    report = probe_bits()
    assert found.digests == {report.build: report.digest}
    assert not found.wrong_bits
    assert "torch" in report.build


def test_probe_that_is_not_repeated_is_refused():
    with pytest.raises(ProgramError, match="repeats must be at least 2"):
        probe_bits(repeats=1)
