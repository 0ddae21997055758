"""Which path steps which parameters, as `explain` tells it and as it happens."""

import pytest
import torch

from drivetrain_optim import AGD, LAMB, WSAM, explain
from drivetrain_optim._errors import HyperparameterError
from drivetrain_optim.batched._paths import PATHS, choose_path
from drivetrain_optim.fused import _native

NO_KERNEL = "there are no kernels for xpu"


@pytest.mark.parametrize(
    ("options", "device", "missing", "path"),
    [
        ({}, "cpu", None, "native"),
        ({}, "cuda", None, "triton"),
        ({}, "cpu", NO_KERNEL, "foreach"),
        ({"fused": False}, "cpu", None, "foreach"),
        ({"foreach": True}, "cuda", None, "foreach"),
        ({"foreach": False}, "cpu", None, "loop"),
        ({"foreach": False, "fused": True}, "cpu", None, "native"),
        ({"capturable": True}, "cpu", None, "capturable"),
        ({"capturable": True}, "cuda", None, "triton"),
        ({"capturable": True, "fused": False}, "cuda", None, "capturable"),
        ({"capturable": True}, "cuda", NO_KERNEL, "capturable"),
    ],
    ids=str,
)
def test_path_follows_the_options_and_the_device(options, device, missing, path):
    given = {"foreach": None, "fused": None, "capturable": False, **options}
    chosen = choose_path("AGD", device=device, fused_missing=missing, **given)
    assert chosen.path == path
    assert chosen.path in PATHS
    assert chosen.because


@pytest.mark.parametrize(
    ("capturable", "device", "missing", "message"),
    [
        (False, "xpu", NO_KERNEL, NO_KERNEL),
        (True, "cpu", None, "a capturable step has no fused kernel on a CPU"),
    ],
)
def test_kernel_that_does_not_exist_is_refused(capturable, device, missing, message):
    with pytest.raises(HyperparameterError, match=f"^AGD: fused=True .* {message}"):
        choose_path(
            "AGD",
            foreach=None,
            fused=True,
            capturable=capturable,
            device=device,
            fused_missing=missing,
        )


def test_explain_counts_tensors_by_group_and_dtype():
    one = [torch.zeros(3, 4), torch.zeros(2, dtype=torch.bfloat16)]
    two = {"params": [torch.zeros(5)], "foreach": False}
    found = explain(LAMB([{"params": one}, two]))
    assert found.optimizer == "LAMB"
    rows = [(u.group, u.dtype, u.num_tensors, u.num_elements) for u in found.uses]
    assert rows == [(0, "float32", 1, 12), (0, "bfloat16", 1, 2), (1, "float32", 1, 5)]
    assert [use.path for use in found.uses] == ["native", "native", "loop"]
    text = str(found)
    assert "group 1: 1 tensor of 5 elements, float32 on cpu: loop" in text
    assert f"({_native.instruction_set()})" in text


def test_explain_of_wsam_is_that_of_its_base():
    found = explain(WSAM(AGD([torch.zeros(2)])))
    assert found.optimizer == "WSAM around AGD"
    assert len(found.uses) == 1


def test_explain_of_wsam_around_another_optimizer_says_so():
    found = explain(WSAM(torch.optim.SGD([torch.zeros(2)])))
    assert found.optimizer == "WSAM around SGD"
    assert "which is not of this package" in str(found)


def test_explain_of_another_optimizer_is_refused():
    with pytest.raises(TypeError, match="got SGD"):
        explain(torch.optim.SGD([torch.zeros(2)]))


@pytest.mark.parametrize("kind", [AGD, LAMB])
def test_explain_tells_what_step_does(kind, monkeypatch):
    ran = []
    for name in ("agd", "lamb"):
        monkeypatch.setattr(_native, name, lambda *a: ran.append("native"))
    weight = torch.zeros(2)
    weight.grad = torch.ones(2)
    optimizer = kind([weight])
    optimizer.step()
    assert ran == [explain(optimizer).uses[0].path]
    without = kind([weight], fused=False)
    without.step()
    assert ran == ["native"]
    assert explain(without).uses[0].path == "foreach"


def test_without_the_library_steps_run_on_torch(monkeypatch):
    monkeypatch.setattr(_native, "missing_because", lambda: "there is no compiler")
    weight = torch.zeros(2)
    weight.grad = torch.ones(2)
    optimizer = AGD([weight])
    optimizer.step()
    (use,) = explain(optimizer).uses
    assert (use.path, use.because) == ("foreach", "there is no compiler")
    with pytest.raises(HyperparameterError, match="there is no compiler"):
        AGD([weight], fused=True)
