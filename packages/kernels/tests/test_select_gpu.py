"""`select` and `replace` on a GPU: what only a GPU offers."""

import pytest
import torch
from replace_models import Model
from selector_models import Blocks

from drivetrain_kernels import replace, select

pytestmark = pytest.mark.gpu


def test_cuda_graphs_are_compared_and_compute_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_CACHE_DIR", str(tmp_path))
    model, x = Blocks().cuda(), torch.randn(64, 8, device="cuda")
    expected = model(x)
    selected = select(model, [x], candidates=["default", "cudagraphs"])
    found = {trial.name: trial for trial in selected.trials}
    assert {trial.status for trial in found.values()} == {"ok"}, str(selected)
    torch.testing.assert_close(selected.call(x), expected, rtol=1e-4, atol=1e-5)


def test_automatic_plan_replaces_by_kernels():
    model, x = Model().cuda(), torch.randn(2, 3, 8, device="cuda")
    expected = model(x)
    replacement = replace(model)
    assert len(replacement.replaced) == 7, str(replacement)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    replacement.undo()
    assert torch.equal(model(x), expected)
