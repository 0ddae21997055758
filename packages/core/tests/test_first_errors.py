"""What is wrong with a program itself is told as that, with a way out."""

from __future__ import annotations

import copy
import logging
import random
import threading

import pytest
import torch
from rehearsed_programs import layered, pairs, sgd, squared
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Sampler

from drivetrain_core import DrivetrainError, PlanError, ProgramError, accelerate
from drivetrain_testing import run_ranks

PARTS = [("micro_batch", 2)]


def test_a_program_that_cannot_run_a_step_is_an_error_of_its_own():
    def broken(output, batch):
        message = "bad loss"
        raise ValueError(message)

    with pytest.raises(ProgramError, match=r"as written.*ValueError: bad loss.*check="):
        accelerate(layered(), sgd, pairs(), broken, strategy=PARTS)
    plan = accelerate(layered(), sgd, pairs(), broken, strategy=PARTS, check=False).plan
    assert plan.guard == {"checked": False}


def test_an_error_that_only_speaks_of_memory_is_none_of_it():
    def broken(output, batch):
        message = "no memory bank"
        raise KeyError(message)

    with pytest.raises(ProgramError, match=r"as written.*no memory bank"):
        accelerate(layered(), sgd, pairs(), broken, strategy=PARTS)


def test_a_program_that_has_no_memory_as_written_may_be_there_to_be_divided(caplog):
    def large(output, batch):
        message = "DefaultCPUAllocator: can't allocate memory"
        raise RuntimeError(message)

    plan = accelerate(layered(), sgd, pairs(), large, strategy=PARTS).plan
    assert plan.guard == {"checked": False}
    assert "is not checked" in caplog.text


def test_a_loss_that_is_nan_as_written_is_none_of_the_plan():
    def lost(output, batch):
        return squared(output, batch) * float("nan")

    with pytest.raises(ProgramError, match=r"without micro_batch.*the loss .* is nan"):
        accelerate(layered(), sgd, pairs(), lost, strategy=PARTS)


def test_a_few_samples_that_give_nan_leave_the_whole_batch():
    def of_last(output, batch):
        return (output - batch[1])[8:].square().mean() + output.square().mean()

    accelerated = accelerate(
        layered(), sgd, pairs(size=16), of_last, strategy=["activation_checkpoint"]
    )
    assert "loss_rel" in accelerated.plan.guard


def test_a_mask_of_infinities_is_no_error():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = layered()
            hidden = torch.full((6, 6), -torch.inf).triu(1)
            self.register_buffer("mask", hidden)

        def forward(self, x):
            return self.inner(x) @ (self.mask.softmax(-1))

    accelerate(Masked(), sgd, pairs(), squared, strategy=PARTS)


@pytest.mark.parametrize("strategy", [[], PARTS])
def test_a_loss_of_torch_that_gets_a_whole_batch_is_told_how_to_be_called(strategy):
    with pytest.raises(ProgramError, match=r"MSELoss takes no tuple.*batch\[1\]"):
        accelerate(layered(), sgd, pairs(), nn.MSELoss(), strategy=strategy)
    whole = [batch[0] for batch in pairs()]
    accelerate(layered(), sgd, whole, nn.MSELoss(), strategy=strategy)


class OwnWrapper(nn.parallel.DistributedDataParallel):
    """What a program may derive from torch's."""


def wrapped(kind):
    model = kind(layered())
    try:
        accelerate(model, sgd, pairs(), squared, strategy=["ddp"])
    except DrivetrainError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [nn.parallel.DistributedDataParallel, OwnWrapper])
def test_a_model_that_is_wrapped_already_is_refused(kind):
    for text in run_ranks(wrapped, 2, kind):
        assert "in DistributedDataParallel already" in text
        assert "the module inside" in text


def normed():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    try:
        accelerate(model, sgd, pairs(), squared, strategy=["ddp"])
    except PlanError as error:
        return error.fix
    return ""


def test_statistics_of_batchnorm_that_ranks_take_alone_are_named():
    for fix in run_ranks(normed, 2):
        assert "statistics of its own samples in 1:" in fix
        assert "convert_sync_batchnorm" in fix


def scripted():
    model = layered(3)
    model[3] = torch.jit.script(model[3])
    try:
        accelerate(model, sgd, pairs(), squared, strategy=["fsdp"], check=False)
    except PlanError as error:
        kinds = {type(parameter) for parameter in model.parameters()}
        return str(error), {kind.__name__ for kind in kinds}
    return "", set()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_fsdp_of_a_scripted_part_is_refused_before_anything_is_sharded():
    for text, kinds in run_ranks(scripted, 2):
        assert "is scripted" in text
        assert "DTensor" not in kinds


def test_a_step_past_train_step_is_told_what_it_leaves_out(caplog):
    model, optimizer, loader = accelerate(
        layered(), sgd, pairs(), squared, strategy=PARTS, max_grad_norm=1.0
    )
    for batch in loader:
        squared(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    # Threads of other tests may still have something to say.
    mine = [r for r in caplog.records if r.thread == threading.get_ident()]
    told = [r.getMessage() for r in mine if r.levelno == logging.WARNING]
    assert len(told) == 1
    assert "leaves out max_grad_norm, micro_batch: train by train_step" in told[0]


@pytest.mark.parametrize("own_loop", [True, False])
def test_a_step_of_ours_says_nothing(own_loop, caplog):
    accelerated = accelerate(
        layered(),
        sgd,
        pairs(),
        squared,
        strategy=[],
        max_grad_norm=1.0,
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        own_loop=own_loop,
    )
    for batch in accelerated.loader:
        if own_loop:
            accelerated.backward(accelerated.loss_of(batch))
            accelerated.optimizer_step()
        else:
            accelerated.train_step(batch)
        accelerated.optimizer.step()  # The first one tells whose loop it is.
    assert not caplog.records


def test_a_loop_of_ones_own_may_step_by_itself(caplog):
    accelerated = accelerate(
        layered(), sgd, pairs(), squared, strategy=[], max_grad_norm=1.0, own_loop=True
    )
    for batch in accelerated.loader:
        accelerated.backward(accelerated.loss_of(batch))
        accelerated.clip_grad_norm_(1.0)
        accelerated.optimizer.step()
        accelerated.optimizer.zero_grad()
    assert not caplog.records


def test_an_optimizer_in_the_backward_is_refused_for_what_it_does():
    def stepped_in_backward():
        model = layered()
        for parameter in model.parameters():
            each = torch.optim.SGD([parameter], lr=0.1)

            def step(parameter, each=each):
                each.step()
                each.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)
        return model

    def nothing(parameters):
        return torch.optim.SGD(parameters, lr=0.0)

    model = stepped_in_backward()
    with pytest.raises(
        PlanError,
        match=r"(the parameters go|the loss differs).*step after the backward",
    ):
        accelerate(model, nothing, pairs(), squared, strategy=PARTS)
    model = stepped_in_backward()
    accelerate(model, nothing, pairs(), squared, strategy=["activation_checkpoint"])


def test_a_factory_is_called_once_as_far_as_it_can_tell():
    model, calls = layered(), []
    twin = copy.deepcopy(model)

    def drawing(parameters):
        calls.append(random.random())
        model[0][0].weight.register_hook(lambda gradient: gradient * 0.5)
        return torch.optim.SGD(parameters, lr=0.1 + 0.1 * float(torch.rand(1)))

    torch.manual_seed(5)
    random.seed(5)
    expected = 0.1 + 0.1 * float(torch.rand(1)), random.random()
    torch.manual_seed(5)
    random.seed(5)
    _, optimizer, _ = accelerate(model, drawing, pairs(), squared, strategy=[])
    assert (optimizer.param_groups[0]["lr"], *calls) == expected
    batch = pairs()[0]
    squared(model(batch[0]), batch).backward()
    squared(twin(batch[0]), batch).backward()
    found, plain = model[0][0].weight.grad, twin[0][0].weight.grad
    assert torch.allclose(found, 0.5 * plain)


def test_a_global_number_that_a_factory_counts_is_put_back():
    global calls
    calls = 0
    _, optimizer, _ = accelerate(layered(), counting, pairs(), squared, strategy=PARTS)
    assert (optimizer.param_groups[0]["lr"], calls) == (0.1, 1)


calls = 0


def counting(parameters):
    global calls
    calls += 1
    return torch.optim.SGD(parameters, lr=0.1 * calls)


@pytest.mark.parametrize("strategy", [[], PARTS])
def test_a_factory_that_counts_its_calls_elsewhere_is_refused(strategy):
    class Factory:
        calls = 0

        def __call__(self, parameters):
            type(self).calls += 1
            return torch.optim.SGD(parameters, lr=0.1 * self.calls)

    with pytest.raises(ProgramError, match=r"lr=0.1 when it is called first, and 0\."):
        accelerate(layered(), Factory(), pairs(), squared, strategy=strategy)


def penalized(strategy, of_parameters):
    model = layered()

    def forward(model, batch):
        x = batch[0].clone().requires_grad_(True)
        return model(x), x

    def loss(output, batch):
        value = squared(output[0], batch)
        of = list(model.parameters()) if of_parameters else [output[1]]
        slopes = torch.autograd.grad(value, of, create_graph=True)
        return value + sum(slope.square().sum() for slope in slopes)

    try:
        accelerate(model, sgd, pairs(), loss, forward=forward, strategy=strategy)
    except PlanError as error:
        return str(error), {type(p).__name__ for p in model.parameters()}
    return "", set()


@pytest.mark.parametrize("of_parameters", [True, False])
def test_fsdp_of_a_gradient_that_is_differentiated_again_is_refused(of_parameters):
    for text, kinds in run_ranks(penalized, 2, ["fsdp"], of_parameters):
        assert "to be differentiated again (create_graph)" in text
        assert "use ddp" in text
        assert kinds == {"Parameter"}


def test_a_gradient_that_is_differentiated_again_passes_in_one_process():
    assert penalized(["activation_checkpoint"], True) == ("", set())


def sharded_already():
    model = layered()
    for part in (*model[:2], model):
        fully_shard(part)
    try:
        accelerate(model, sgd, pairs(), squared, strategy=["fsdp"])
    except DrivetrainError as error:
        return str(error)
    return ""


def test_a_model_that_is_sharded_already_is_refused():
    for text in run_ranks(sharded_already, 2):
        assert "in FSDPModule already" in text


class Uneven(Sampler):
    """Gives each rank its own samples, and the first one more."""

    num_replicas = 2

    def __iter__(self):
        return iter(range(torch.distributed.get_rank(), 9, 2))

    def __len__(self):
        return 5 - torch.distributed.get_rank()


def unevenly_shared():
    data = DataLoader([(b[0][0], b[1][0]) for b in pairs(9)], 4, sampler=Uneven())
    try:
        accelerate(layered(), sgd, data, squared, strategy=["ddp"])
    except DrivetrainError as error:
        return str(error)
    return ""


def test_ranks_of_which_one_would_have_no_batch_at_the_end_are_refused():
    for text in run_ranks(unevenly_shared, 2):
        assert "same number of batches in an epoch" in text
        assert "rank 0 has 2, rank 1 has 1" in text
