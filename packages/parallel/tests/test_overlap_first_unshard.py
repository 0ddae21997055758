"""The first all-gather under data loading: exact, and nothing left behind."""

import logging

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from drivetrain_core import Phase, PlanError, Slot, accelerate
from drivetrain_parallel.optimizations.overlap import OverlapFirstGatherOptimization
from drivetrain_parallel.overlap import OverlapError, prefetch_first_unshard
from drivetrain_testing import check_optimization, run_ranks


def sharded(zero=3):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), *(nn.Sequential(nn.Linear(8, 8)) for _ in range(3))
    )
    for block in model[1:]:
        fully_shard(block, reshard_after_forward=zero == 3)
    return fully_shard(model, reshard_after_forward=False)


def batches(count=5):
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(3, 4, generator=generator) for _ in range(count)]


def is_sharded(model):
    return all(isinstance(parameter, DTensor) for parameter in model.parameters())


def train(model, loader, stop=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for step, batch in enumerate(loader):
        if step == stop:
            break
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses + [p.to_local().tolist() for p in model.parameters()]


def exact():
    for zero in (2, 3):
        expected = train(sharded(zero), batches())
        for num_blocks in (0, 1, 99):
            model = sharded(zero)
            loader = prefetch_first_unshard(model, batches(), num_blocks=num_blocks)
            assert len(loader) == 5
            assert train(model, loader) == expected
            assert is_sharded(model)
        # Once more over the same loader.
        again = train(model, loader)
        assert again != expected
        assert len(again) == len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.faults), 2])
def test_training_is_the_same_bits(size):
    run_ranks(exact, size)


def started_before_the_data():
    """The all-gathers are under way as the loader is asked, at each batch."""
    model = sharded()
    root, block = model, model[1]
    calls = []
    for module, name in ((root, "root"), (block, "block")):
        unshard = module.unshard

        def traced(async_op=False, *, unshard=unshard, name=name):
            calls.append((name, async_op))
            return unshard(async_op)

        module.unshard = traced

    def data():
        for batch in batches(3):
            seen.append(list(calls))
            calls.clear()
            yield batch

    seen = []
    train(model, prefetch_first_unshard(model, data()))
    # The forward of FSDP finds them done, and gathers only what comes after.
    return seen


def test_all_gathers_start_before_the_batch_is_there():
    both = [("root", True), ("block", True)]
    assert run_ranks(started_before_the_data, 2) == [[both] * 3] * 2


def endings():
    model = sharded()

    def endless():
        while True:
            yield from batches()

    losses = train(model, prefetch_first_unshard(model, endless()), stop=3)
    assert losses[:3] == train(sharded(), batches(3))[:3]
    assert is_sharded(model)
    assert not model._forward_pre_hooks or len(model._forward_pre_hooks) == 1

    def broken():
        yield from batches(2)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        train(model, prefetch_first_unshard(model, broken()))
    assert is_sharded(model)

    # Left before the forward, which would have taken what was gathered.
    stream = iter(prefetch_first_unshard(model, endless()))
    next(stream)
    stream.close()
    assert is_sharded(model)
    assert list(prefetch_first_unshard(model, [])) == []
    assert is_sharded(model)
    # Without gradients, as in an evaluation.
    with torch.no_grad():
        outputs = [model(b) for b in prefetch_first_unshard(model, batches(2))]
        assert all(map(torch.equal, outputs, [model(b) for b in batches(2)]))
    return len(train(model, prefetch_first_unshard(model, batches(1))))


def test_a_loop_may_end_in_any_way():
    run_ranks(endings, 2)


def fetches_early(how):
    """Takes the next batch before the step, so what is gathered is of no use."""
    found = []
    for wrap in (lambda _, data: data, prefetch_first_unshard):
        model = sharded()
        kinds = {how: True} if how in ("foreach", "fused") else {}
        kind = torch.optim.AdamW if how == "fused" else torch.optim.SGD
        optimizer = kind(model.parameters(), lr=0.1, **kinds)
        stream = iter(wrap(model, batches()))
        batch = next(stream)
        losses = []
        while batch is not None:
            loss = model(batch).square().mean()
            loss.backward()
            batch = next(stream, None)
            if how == "assigned":
                state = model.state_dict()
                given = {n: nn.Parameter(p.detach() + 0.1) for n, p in state.items()}
                model.load_state_dict(given, assign=True)
            elif how != "local parts":
                optimizer.step()
            else:
                for parameter in model.parameters():
                    parameter.to_local().data.add_(0)  # no change, and none is seen
                    with torch.no_grad():
                        parameter.to_local().add_(parameter.grad.to_local(), alpha=-0.1)
            optimizer.zero_grad()
            losses.append(loss.item())
        found.append(losses)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "how", ["optimizer", "foreach", "fused", "local parts", "assigned"]
)
def test_parameters_that_change_in_between_are_gathered_again(how):
    run_ranks(fetches_early, 2, how)


def warns():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("drivetrain_parallel").addHandler(handler)
    fetches_early("optimizer")
    return [record.getMessage() for record in records]


def test_the_loss_of_the_overlap_is_logged_once():
    for messages in run_ranks(warns, 2):
        assert len(messages) == 1
        assert "gathered again" in messages[0]


def block_called_alone():
    found = []
    for wrap in (lambda _, data: data, prefetch_first_unshard):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        stream = iter(wrap(model, batches()))
        model(next(stream)).square().mean().backward()
        next(stream)
        optimizer.step()
        block = next(
            m for m in model.modules() if m is not model and isinstance(m, FSDPModule)
        )
        shape = next(block.parameters()).shape
        found.append(block(torch.ones(2, shape[1])).sum().item())
    assert found[0] == found[1]


def test_a_block_that_is_called_alone_is_not_a_stale_one():
    run_ranks(block_called_alone, 2)


def inference():
    found = []
    for wrap in (lambda _, data: data, prefetch_first_unshard):
        model = sharded()
        with torch.inference_mode():
            found.append([model(b).sum().item() for b in wrap(model, batches())])
    assert found[0] == found[1]


def test_inference_mode_is_fine():
    run_ranks(inference, 2)


def compiled():
    found = []
    for wrap in (lambda _, data: data, prefetch_first_unshard):
        model = sharded()
        model.compile(backend="eager")
        found.append(train(model, wrap(model, batches())))
    return found


@pytest.mark.faults
def test_a_compiled_model_trains_the_same():
    for found in run_ranks(compiled, 2):
        assert found[0] == found[1]


def test_other_models_are_errors():
    with pytest.raises(OverlapError, match=r"fully_shard.*got Linear"):
        prefetch_first_unshard(nn.Linear(2, 2), [])


def bad_number():
    with pytest.raises(OverlapError, match="0 or more, got -1"):
        prefetch_first_unshard(sharded(), [], num_blocks=-1)


def test_a_negative_number_of_blocks_is_an_error():
    run_ranks(bad_number, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def accelerated(strategy):
    torch.manual_seed(0)
    data = [torch.randn(4, 4) for _ in range(4)]
    return accelerate(
        Net(),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        data,
        loss=lambda output, batch: (output - batch).square().mean(),
        strategy=strategy,
    )


def plan(world):
    if world == 1:
        with pytest.raises(PlanError, match=r"one rank|fsdp"):
            accelerated(["fsdp", "overlap_first_gather"])
        return None
    found = []
    for extra in ([], ["overlap_first_gather"]):
        done = accelerated(["fsdp", *extra])
        assert isinstance(done.module, FSDPModule)
        losses = [done.train_step(batch).item() for batch in done.loader]
        found.append(losses)
    assert found[0] == found[1]
    with pytest.raises(PlanError, match="fsdp"):
        accelerated(["ddp", "overlap_first_gather"])
    check_optimization(OverlapFirstGatherOptimization())
    return found[0]


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.faults), 2])
def test_a_plan_may_hold_it(world):
    run_ranks(plan, world, world)


def test_it_is_a_choice_of_the_comm_slot():
    chosen = OverlapFirstGatherOptimization()
    assert (chosen.slot, chosen.phase) == (Slot.COMM, Phase.RUNTIME)
    assert chosen.requires == ("fsdp",)
    with pytest.raises(PlanError, match="num_blocks must be at least 0"):
        chosen.normalize(-1)
