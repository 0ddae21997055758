"""The optimizer's recipe: factories, instances, groups, masters, options."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drivetrain_core import PlanError, ProgramError
from drivetrain_core._optimizer.master_weights import MasterWeightOptimizer
from drivetrain_core._optimizer.source import OptimizerSource
from drivetrain_core.services import DcpCheckpointer


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def grouped(net):
    return torch.optim.AdamW(
        [
            {"params": [net[0].weight, net[1].weight], "weight_decay": 0.1},
            {"params": [net[0].bias, net[1].bias], "weight_decay": 0.0, "lr": 0.5},
        ],
        lr=0.01,
        betas=(0.8, 0.9),
    )


def test_instance_is_rebuilt_on_new_tensors_with_its_groups():
    net = model()
    source = OptimizerSource.of(grouped(net), net)
    other = model()
    rebuilt = source.build(other)
    assert type(rebuilt) is torch.optim.AdamW
    assert [len(group["params"]) for group in rebuilt.param_groups] == [2, 2]
    assert [group["lr"] for group in rebuilt.param_groups] == [0.01, 0.5]
    assert rebuilt.param_groups[0]["betas"] == (0.8, 0.9)
    assert rebuilt.param_groups[1]["params"][0] is other[0].bias


def test_instance_that_was_stepped_carries_its_state_over():
    net = model()
    optimizer = grouped(net)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    rebuilt = OptimizerSource.of(optimizer, net).build(net)
    state = rebuilt.state[net[0].weight]
    assert torch.equal(state["exp_avg"], optimizer.state[net[0].weight]["exp_avg"])
    assert float(state["step"]) == 1.0


def test_factory_is_called_on_the_parameters_as_they_are():
    net = model()
    source = OptimizerSource.of(lambda ps: torch.optim.SGD(ps, lr=0.1), net)
    net[0].weight = nn.Parameter(torch.zeros(4, 3))
    optimizer = source.build(net)
    assert optimizer.param_groups[0]["params"][0] is net[0].weight


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "got int"),
        (lambda _: 3, "must return a torch.optim.Optimizer, got int"),
        (
            lambda _: torch.optim.SGD([nn.Parameter(torch.ones(2, 7))]),
            r"shape \(2, 7\)",
        ),
    ],
)
def test_optimizer_that_is_wrong_is_one_error(given, words):
    with pytest.raises(ProgramError, match=words):
        OptimizerSource.of(given, model())


def test_replacement_keeps_learning_rate_and_decay_of_each_group():
    net = model()
    source = OptimizerSource.of(grouped(net), net)
    seen = []

    def factory(groups):
        seen.extend(groups)
        return torch.optim.SGD(groups, lr=9.0)

    optimizer = source.replaced_by(factory).build(net)
    assert [(g["lr"], g["weight_decay"]) for g in seen] == [(0.01, 0.1), (0.5, 0.0)]
    assert set(seen[0]) >= {"params", "lr", "weight_decay"}
    assert "betas" not in optimizer.param_groups[0]


def test_option_that_the_optimizer_lacks_is_refused():
    net = model()
    source = OptimizerSource.of(torch.optim.LBFGS(net.parameters()), net)
    with pytest.raises(PlanError, match="LBFGS has no option 'fused'"):
        source.with_options(fused=True).build(net)


def test_master_weights_do_not_lose_small_steps():
    net = model().bfloat16()
    source = OptimizerSource.of(lambda ps: torch.optim.SGD(ps, lr=1e-4), net)
    plain = source.build(net)
    master = source.with_master_weights().build(net)
    assert isinstance(master, MasterWeightOptimizer)
    weight = net[0].weight
    before = weight.detach().clone()
    for optimizer, moved in ((plain, False), (master, True)):
        with torch.no_grad():
            weight.fill_(1.0)
            master.masters["0.weight"].fill_(1.0)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()
        assert bool((weight != 1.0).any()) is moved
    assert before.dtype == torch.bfloat16
    assert weight.grad is None


def test_master_weights_follow_a_scheduler_and_survive_a_state_dict():
    net = model().bfloat16()
    source = OptimizerSource.of(lambda ps: torch.optim.AdamW(ps, lr=0.1), net)
    optimizer = source.with_master_weights().build(net)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        net(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    assert optimizer.inner.param_groups[0]["lr"] == pytest.approx(0.0125)
    saved = optimizer.state_dict()
    other = model().bfloat16()
    again = OptimizerSource.of(lambda ps: torch.optim.AdamW(ps, lr=0.1), other)
    restored = again.with_master_weights().build(other)
    restored.load_state_dict(saved)
    for name, weight in net.named_parameters():
        assert torch.equal(dict(other.named_parameters())[name], weight)
        assert torch.equal(restored.masters[name], optimizer.masters[name])
    assert restored.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    with pytest.raises(ValueError, match="expected 4 masters, got 0"):
        restored.load_state_dict({"inner": {}, "masters": []})


def load(model):
    model.load_state_dict({"weight": torch.full((1, 4), 3.0)})


def average(model):
    torch.nn.utils.vector_to_parameters(
        torch.full((4,), 3.0).bfloat16(), model.parameters()
    )


def fill(model):
    torch.nn.init.constant_(model.weight, 3.0)


@pytest.mark.parametrize("change", [load, average, fill])
def test_master_weights_take_over_what_was_loaded(change):
    model = torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    optimizer = MasterWeightOptimizer(
        dict(model.named_parameters()), lambda named: torch.optim.SGD(named.values())
    )
    for _ in range(3):
        change(model)
        for _ in range(2):
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step()
        assert model.weight.tolist() == [[3.0] * 4]
        assert optimizer.masters["weight"].tolist() == [[pytest.approx(2.998)] * 4]


def test_masters_that_were_restored_with_their_weights_keep_their_bits():
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = MasterWeightOptimizer(
        {"weight": weight}, lambda named: torch.optim.SGD(named.values(), lr=0.0)
    )
    with torch.no_grad():
        weight.copy_(torch.full((2,), 1.001))
        optimizer.masters["weight"].copy_(torch.full((2,), 1.001))
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert optimizer.masters["weight"].tolist() == [pytest.approx(1.001)] * 2


def test_masters_have_what_the_user_set_on_the_weights():
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    weight._no_weight_decay = True
    found = []

    def build(named):
        found.extend(getattr(one, "_no_weight_decay", False) for one in named.values())
        return torch.optim.SGD(named.values())

    MasterWeightOptimizer({"weight": weight}, build)
    assert found == [True]


def test_master_weights_leave_fp32_weights_alone():
    net = nn.Sequential(nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2))
    source = OptimizerSource.of(lambda ps: torch.optim.SGD(ps, lr=0.1), net)
    optimizer = source.with_master_weights().build(net)
    assert optimizer.masters["1.weight"] is net[1].weight
    assert optimizer.masters["0.weight"].dtype == torch.float32


def test_master_weights_survive_a_checkpoint(built, tmp_path):
    def train(accelerated, steps):
        batch = next(iter(accelerated.loader))
        return [accelerated.train_step(batch).item() for _ in range(steps)]

    first = built([("precision", "bf16_params")])
    train(first, 2)
    checkpointer = DcpCheckpointer(tmp_path)
    saved = {"model": first.module, "optimizer": first.optimizer}
    checkpointer.save(2, saved).wait()
    rest = train(first, 3)
    second = built([("precision", "bf16_params")])
    checkpointer.restore({"model": second.module, "optimizer": second.optimizer})
    assert train(second, 3) == rest


class Flagged(torch.optim.SGD):
    """An optimizer that keeps an argument to itself."""

    def __init__(self, params, lr=0.1, *, flag=False):
        super().__init__(params, lr=lr)
        self.flag = flag


@pytest.mark.parametrize("replaced", [False, True])
def test_hooks_of_an_instance_are_called_by_what_is_built(replaced):
    net, called = model(), []
    optimizer = grouped(net)
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    source = OptimizerSource.of(optimizer, net)
    if replaced:
        source = source.replaced_by(lambda groups: torch.optim.SGD(groups, lr=0.1))
    made = source.build(net)
    made.step()
    assert called == ["before", "after"]
    assert source.build(net) is not made


def test_instance_that_hides_an_argument_is_refused():
    net = model()
    with pytest.raises(ProgramError, match=r"Flagged does not record.*'flag'"):
        OptimizerSource.of(Flagged(net.parameters(), flag=True), net)
    made = OptimizerSource.of(lambda ps: Flagged(ps, flag=True), net).build(net)
    assert made.flag


def test_instance_that_a_scheduler_drives_is_refused():
    net = model()
    optimizer = grouped(net)
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with pytest.raises(ProgramError, match=r"scheduler=function\(optimizer\)"):
        OptimizerSource.of(optimizer, net)


@pytest.mark.parametrize("kind", ["Adafactor", "Adagrad", "LBFGS", "Muon", "RMSprop"])
def test_every_optimizer_of_torch_can_be_rebuilt(kind):
    net = nn.Linear(3, 3, bias=False)
    optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.1)
    source = OptimizerSource.of(optimizer, net)
    assert type(source.build(net)) is type(optimizer)
    assert source.needs_closure == (kind == "LBFGS")
