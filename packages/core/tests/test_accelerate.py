"""`accelerate`: given plans, searches, bad input, and what it leaves untouched."""

from __future__ import annotations

import copy
import logging
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core import (
    Choice,
    ClusterSpecError,
    DataExhaustedError,
    DistributedError,
    Plan,
    PlanError,
    PlanFormatError,
    ProgramError,
)
from drivetrain_core.services import local_cluster
from drivetrain_testing.programs import data, mse, run, sgd, small


def test_given_plan_unpacks_to_plain_objects():
    model, optimizer, loader = accelerated = run([("micro_batch", 2)])
    assert type(model) is nn.Linear
    assert type(optimizer) is torch.optim.SGD
    assert accelerated.report is None
    losses = [accelerated.train_step(b).item() for _ in range(9) for b in loader]
    assert sum(losses[-4:]) < sum(losses[:4])
    assert str(accelerated) == "Accelerated(micro_batch(num=2))"


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        (["tensor_parallell"], "UNKNOWN"),
        (["ddp"], "NEEDS_WORLD"),
        ([("micro_batch", 99)], "UNEVEN_MICROBATCH"),
        (["channels_last"], "NOT_APPLICABLE"),
        ([("optimizer_impl", "fused"), ("micro_batch", "x")], "CONFIG"),
    ],
)
def test_impossible_item_raises_before_the_model_is_touched(strategy, code):
    model = small()
    before, forward = copy.deepcopy(model.state_dict()), model.forward
    with pytest.raises(PlanError) as caught:
        run([*strategy, "precision"], model=model)
    assert caught.value.code == code
    assert model.forward == forward
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_fallback_drops_loudly_and_records(caplog):
    with caplog.at_level(logging.WARNING):
        accelerated = run(["channels_last", "precision"], on_error="fallback")
    assert str(accelerated.plan) == "precision(dtype=bf16_autocast)"
    assert [r.code for r in accelerated.plan.rejected] == ["NOT_APPLICABLE"]
    assert "channels_last is dropped" in caplog.text


def test_plan_file_is_applied_again_and_checked(tmp_path):
    path = tmp_path / "plan.yaml"
    first = run([("micro_batch", 2), "precision"], plan_out=path)
    again = run(path)
    assert again.plan.choices == first.plan.choices
    bound = Plan(choices=first.plan.choices, fingerprint={"model": "0" * 16})
    with pytest.raises(PlanError, match="another model") as caught:
        run(bound)
    assert caught.value.code == "FINGERPRINT"


def test_a_plan_that_was_named_is_bound_to_its_model(tmp_path):
    path = tmp_path / "plan.yaml"
    first = run([("micro_batch", 2)], plan_out=path)
    assert Plan.load(path).fingerprint == first.context.fingerprint()
    with pytest.raises(PlanError, match="another model") as caught:
        run(path, model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
    assert caught.value.optimization == str(path)


def test_plan_for_other_batches_warns_and_goes_on(caplog):
    plan = Plan(fingerprint={"batch": "float32[*, 9]"}, made={"device": "elsewhere"})
    with caplog.at_level(logging.WARNING):
        run(plan)
    assert "made for batches of float32[*, 9]" in caplog.text
    assert "made on elsewhere" in caplog.text


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"model": 3}, ProgramError, "got int"),
        ({"model": lambda: 3}, ProgramError, "returned int, not a Module"),
        ({"model": nn.ReLU}, ProgramError, "no parameter that requires a gradient"),
        ({"model": nn.Linear(2, 1, device="meta")}, ProgramError, "on the meta device"),
        ({"optimizer": "adam"}, ProgramError, "got str"),
        ({"batches": 7}, ProgramError, "iterable of batches, got int"),
        ({"batches": TensorDataset(torch.ones(4))}, ProgramError, "in a torch.utils"),
        ({"batches": []}, DataExhaustedError, "yields no batch"),
        ({"batches": iter([])}, DataExhaustedError, "yields no batch"),
        ({"batches": ["text"]}, ProgramError, "must hold tensors, got str"),
        ({"budget": "soon"}, ProgramError, "got 'soon'"),
        ({"budget": {"second": 3}}, ProgramError, "got 'second'"),
        ({"budget": -1}, ProgramError, "must be positive"),
        ({"on_error": "ignore"}, ProgramError, "raise, fallback, got 'ignore'"),
        ({"scheduler": 3}, ProgramError, "function from the optimizer.*got int"),
        ({"scheduler": ReduceLROnPlateau}, ProgramError, "steps on a metric"),
        ({"optimizer": torch.optim.LBFGS}, ProgramError, "LBFGS needs a closure"),
    ],
)
def test_bad_argument_is_one_error(settings, error, words):
    with pytest.raises(error, match=words):
        run([], **settings)


def test_optimizer_around_the_master_weights_is_refused():
    model = small()
    with pytest.raises(PlanError, match="parameters that the model no longer has"):
        run(
            [("precision", "bf16_params")],
            model=model,
            optimizer=lambda _: sgd(model.parameters()),
        )


def test_optimizer_with_a_closure_in_a_loop_of_ones_own():
    model, optimizer, loader = run([], optimizer=torch.optim.LBFGS, own_loop=True)
    batch = next(iter(loader))

    def closure():
        optimizer.zero_grad()
        loss = mse(model(batch[0]), batch)
        loss.backward()
        return loss

    first = closure().item()
    for _ in range(3):
        last = optimizer.step(closure).item()
    assert last < first


def test_data_that_can_be_read_once_loses_nothing():
    batches = data(5)
    accelerated = run([], batches=iter(batches))
    seen = list(accelerated.loader)
    assert len(seen) == 5
    assert all(torch.equal(a[0], b[0]) for a, b in zip(seen, batches, strict=True))


class Augmented(TensorDataset):
    """Draws from the global random states of Python, numpy and torch."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        noise = random.random() + np.random.rand()  # noqa: NPY002
        return x + noise + torch.rand(1), y


@pytest.mark.parametrize("explicit", [False, True])
def test_shuffled_loader_is_not_disturbed(explicit):
    dataset = Augmented(torch.arange(32.0).view(32, 1), torch.zeros(32, 1))

    def first(accelerated):
        torch.manual_seed(3)
        random.seed(4)
        np.random.seed(5)  # noqa: NPY002
        generator = torch.Generator().manual_seed(6) if explicit else None
        loader = DataLoader(dataset, batch_size=8, shuffle=True, generator=generator)
        if accelerated:
            loader = run([], model=lambda: nn.Linear(1, 1), batches=loader).loader
        return [batch[0] for batch in loader]

    for ours, theirs in zip(first(True), first(False), strict=True):
        assert torch.equal(ours, theirs)


def test_model_without_shapes_says_what_to_do():
    with pytest.raises(ProgramError, match="call the model on one before"):
        run([], model=lambda: torch.nn.LazyLinear(1))


def test_search_unwritable_plan_is_one_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(PlanFormatError, match="cannot be written"):
        run([], plan_out=blocked / "plan.yaml")


def test_launched_without_a_process_group_says_what_to_call(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(DistributedError, match=r"init_process_group\(\)"):
        run([])


def test_cluster_is_read_and_checked(tmp_path):
    spec = local_cluster()
    path = tmp_path / "cluster.yaml"
    spec.dump(path)
    assert str(run([], cluster=path).plan) == "baseline"
    with pytest.raises(ClusterSpecError, match="none"):
        run([], cluster=tmp_path / "none.yaml")


def test_module_with_buffers_and_device_argument():
    accelerated = run([Choice("precision", {"dtype": "fp32"})], device="cpu")
    assert accelerated.device == torch.device("cpu")
    accelerated.close()
