"""Gradients that are summed over ranks, in one step after another."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_core import ProgramError
from drivetrain_elastic._training._gradient_reducer import GradientReducer
from drivetrain_elastic._training._parameter_hooks import GradientContents
from drivetrain_testing import run_ranks


def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(5, 5) for _ in range(4)]
    layers[1].weight.requires_grad_(False)
    return torch.nn.Sequential(*layers[:3]).double(), layers[3].double()


def trains(bucket_bytes):
    """Steps of two passes each; one layer takes part on rank 0 only."""
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), []
    body, head = model()
    parameters = [*body.parameters(), *head.parameters()]
    reducer = GradientReducer(parameters, bucket_bytes=bucket_bytes)
    data = torch.Generator().manual_seed(rank)
    for _ in range(3):
        reducer.begin()
        for part in range(2):
            x = torch.rand(3, 5, generator=data, dtype=torch.float64)
            if part:
                reducer.send_with(dist.group.WORLD)
            y = body(x)
            (head(y) if rank == 0 else y).square().sum().backward()
        reducer.finish(dist.group.WORLD)
        with reducer.shown():
            found.append([one.grad.clone() for one in parameters if one.requires_grad])
        assert all(one.grad is None for one in parameters)
    dist.destroy_process_group()
    return found


def alone(world_size):
    """The same sums in one process."""
    body, head = model()
    parameters = [one for m in (body, head) for one in m.parameters()]
    wanted = [one for one in parameters if one.requires_grad]
    data = [torch.Generator().manual_seed(rank) for rank in range(world_size)]
    found = []
    for _ in range(3):
        for one in wanted:
            one.grad = None
        for rank, generator in enumerate(data):
            for _ in range(2):
                x = torch.rand(3, 5, generator=generator, dtype=torch.float64)
                y = body(x)
                (head(y) if rank == 0 else y).square().sum().backward()
        found.append([one.grad.clone() for one in wanted])
    return found


@pytest.mark.parametrize("bucket_bytes", [1, 300, 1 << 20])
def test_gradients_are_sums_over_ranks_and_passes(bucket_bytes):
    wanted = alone(3)
    for ours in run_ranks(trains, 3, bucket_bytes, process_group=False):
        for step, theirs in zip(ours, wanted, strict=True):
            for one, other in zip(step, theirs, strict=True):
                assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


def loses_a_rank():
    from datetime import timedelta

    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    body, _ = model()
    reducer = GradientReducer(body.parameters(), bucket_bytes=1)
    told = ""
    for step in range(3):
        reducer.begin()
        if step == 1 and dist.get_rank() == 2:
            return "left"
        reducer.send_with(dist.group.WORLD)
        body(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
        try:
            reducer.finish(dist.group.WORLD)
        except RuntimeError as error:
            told = str(error)
            break
    assert reducer._works == []
    return told


def test_rank_that_leaves_breaks_the_step_off():
    *told, left = run_ranks(loses_a_rank, 3, process_group=False, timeout_s=90)
    assert left == "left"
    assert all(told)


def sharded():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    body, _ = model()
    for one in body.parameters():
        one.requires_grad_(True)
    whole = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(3))).double()
    whole.load_state_dict(body.state_dict())
    fully_shard(body, mesh=mesh["shard"])
    reducer = GradientReducer(body.parameters())
    reducer.begin()
    replicas = mesh.get_group("replica")
    x = torch.full((2, 5), float(dist.get_rank() + 1), dtype=torch.float64)
    reducer.send_with(replicas)
    body(x).sum().backward()
    reducer.finish(replicas)
    for rank in range(4):
        x = torch.full((2, 5), float(rank + 1), dtype=torch.float64)
        # FSDP takes the mean over the two that share a copy.
        (whole(x).sum() / 2).backward()
    with reducer.shown():
        found = [
            torch.allclose(mine.grad.full_tensor(), theirs.grad)
            for mine, theirs in zip(body.parameters(), whole.parameters(), strict=True)
        ]
    dist.destroy_process_group()
    return found


def test_local_parts_of_sharded_parameters_are_summed_over_replicas():
    for found in run_ranks(sharded, 4, process_group=False, timeout_s=90):
        assert found == [True] * 6


def test_model_without_gradients_is_refused():
    with pytest.raises(ValueError, match="must have a parameter that needs"):
        GradientReducer([torch.zeros(3)])


def backward(layer, times=1):
    layer(torch.full((1, 2), float(times))).sum().backward()


def make_layer():
    layer = torch.nn.Linear(2, 2)
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    return layer, GradientReducer(layer.parameters()), group


def shown(reducer, layer):
    with reducer.shown():
        return sum(one.grad.sum().item() for one in layer.parameters())


def test_gradients_that_are_made_between_two_steps_are_in_none():
    layer, reducer, group = make_layer()
    reducer.begin()
    backward(layer)
    reducer.finish(group)
    assert shown(reducer, layer) == 6
    backward(layer, 5)
    reducer.begin()
    assert reducer.sums is None
    backward(layer, 2)
    backward(layer, 3)
    reducer.finish(group)
    assert shown(reducer, layer) == 2 + 2 + 4 * 5
    # A step without a backward pass has no gradients.
    reducer.begin()
    reducer.finish(group)
    assert reducer.sums == [None, None]


def tells_news():
    dist.init_process_group("gloo")
    layer = torch.nn.Linear(2, 2).to(torch.bfloat16)
    reducer = GradientReducer(layer.parameters())
    found = []
    for step in range(3):
        reducer.begin(
            look_for_news=lambda step=step: step == 1 and dist.get_rank() == 2
        )
        reducer.send_with(dist.group.WORLD)
        layer(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        reducer.finish(dist.group.WORLD)
        found.append(reducer.has_news)
    dist.destroy_process_group()
    return found


def test_all_ranks_hear_of_news_in_the_same_step():
    found = run_ranks(tells_news, 3, process_group=False)
    assert found == [[False, True, False]] * 3


def test_sparse_gradients_travel_too():
    table = torch.nn.Embedding(5, 2, sparse=True)
    reducer = GradientReducer(table.parameters())
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    reducer.begin()
    for _ in range(2):
        table(torch.tensor([1, 3, 3])).sum().backward()
    reducer.finish(group)
    with reducer.shown():
        grad = table.weight.grad
        assert grad.is_sparse
        assert grad.is_coalesced()
        assert grad.to_dense()[:, 0].tolist() == [0, 2, 0, 4, 0]
        assert grad.indices().tolist() == [[1, 3]]


def tensor_parallel():
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    dist.init_process_group("gloo")
    torch.manual_seed(0)

    def make():
        layers = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)
        return torch.nn.Sequential(*layers).double()

    whole, split = make(), make()
    split.load_state_dict(whole.state_dict())
    mesh = dist.init_device_mesh("cpu", (2,))
    from torch.distributed.tensor import Replicate, Shard

    plan = {
        "0": ColwiseParallel(),
        "1": RowwiseParallel(output_layouts=Shard(0)),
        "2": SequenceParallel(sequence_dim=0),
    }
    parallelize_module(split, mesh, plan)
    reducer = GradientReducer(split.parameters())
    # One copy of the model, so that there is nobody to reduce with.
    group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    reducer.begin()
    for at in range(2):
        x = torch.rand(
            6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(at)
        )
        whole(x).square().sum().backward()
        y = split(x).redistribute(placements=[Replicate()]).to_local()
        y.square().sum().backward()
    reducer.finish(group)
    with reducer.shown():
        return [
            torch.allclose(mine.grad.full_tensor(), theirs.grad)
            for mine, theirs in zip(split.parameters(), whole.parameters(), strict=True)
        ]


def test_gradients_of_a_tensor_parallel_copy_are_whole():
    assert run_ranks(tensor_parallel, 2, process_group=False) == [[True] * 6] * 2


def two_passes_in_the_last_part(clears):
    """Two ranks with several small buckets: the first pass has sent most of them."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    body, _ = model()
    wanted = [one for one in body.parameters() if one.requires_grad]
    reducer = GradientReducer(wanted, bucket_bytes=1)
    x = torch.full((1, 5), float(rank + 1), dtype=torch.float64)
    found, num_sent = [], []
    for _ in range(2):
        reducer.begin()
        reducer.send_with(dist.group.WORLD)
        body(x).sum().backward()
        num_sent.append(reducer._num_sent)
        if clears:
            body.zero_grad()
        body(2 * x).sum().backward()
        reducer.finish(dist.group.WORLD)
        found.append([one.clone() for one in reducer.sums])
    dist.destroy_process_group()
    return found, num_sent


@pytest.mark.parametrize("clears", [False, True])
def test_bucket_that_a_second_pass_changes_is_sent_again(clears):
    body, _ = model()
    for scale in (1.0, 2.0):
        x = torch.full((1, 5), scale, dtype=torch.float64)
        if not clears:
            body(x).sum().backward()
        body(2 * x).sum().backward()
    wanted = [one.grad for one in body.parameters() if one.requires_grad]
    ranks = run_ranks(two_passes_in_the_last_part, 2, clears, process_group=False)
    for found, num_sent in ranks:
        # What was in vain once is not tried in the next step.
        assert num_sent == [4, 0]
        for step in found:
            assert all(map(torch.allclose, step, wanted))


def unlike_ranks():
    """Of three layers rank 0 uses the first, rank 1 the second, and nobody the third."""
    dist.init_process_group("gloo")
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 1) for _ in range(3))
    reducer = GradientReducer(layers.parameters(), bucket_bytes=1)
    reducer.begin()
    reducer.send_with(dist.group.WORLD)
    layers[dist.get_rank()](torch.ones(1, 2)).sum().backward()
    reducer.finish(dist.group.WORLD)
    dist.destroy_process_group()
    return [one is not None and one.sum().item() for one in reducer.sums]


def test_parameter_that_no_rank_has_used_has_no_gradient():
    wanted = [2.0, 1.0, 2.0, 1.0, False, False]
    assert run_ranks(unlike_ranks, 2, process_group=False) == [wanted] * 2


def test_complex_gradients_travel_as_pairs():
    layer = torch.nn.Linear(3, 1, dtype=torch.cfloat)
    reducer = GradientReducer(layer.parameters())
    reducer.begin()
    layer(torch.ones(1, 3, dtype=torch.cfloat)).abs().square().sum().backward()
    wanted = layer.weight.grad.clone()
    reducer.finish(dist.ProcessGroupGloo(dist.HashStore(), 0, 1))
    assert torch.equal(reducer.sums[0], wanted)
    assert reducer.sums[0].dtype == torch.cfloat


def test_pass_that_would_add_to_sums_is_refused():
    layer, reducer, group = make_layer()
    reducer.begin()
    backward(layer)
    reducer.finish(group)
    reducer.show()
    backward(layer)
    with pytest.raises(ProgramError, match="after the loop over the parts"):
        reducer.settle()


def test_clipping_between_two_passes_is_refused():
    layer, reducer, group = make_layer()
    reducer.begin()
    backward(layer)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
    backward(layer)
    with pytest.raises(ProgramError, match="changed before they were sums"):
        reducer.finish(group)


def keeps_gradients():
    """Two ranks; what is kept is looked at after another step."""
    dist.init_process_group("gloo")
    body, _ = model()
    wanted = [one for one in body.parameters() if one.requires_grad]
    reducer = GradientReducer(wanted, bucket_bytes=300)
    found = []
    for scale in (1.0, 3.0):
        reducer.begin()
        reducer.send_with(dist.group.WORLD)
        x = torch.full((1, 5), scale, dtype=torch.float64)
        body(x).sum().backward()
        local = [one.grad for one in wanted]
        values = [one.clone() for one in local]
        reducer.finish(dist.group.WORLD)
        reducer.show()
        sums = [one.grad for one in wanted]
        found.append((local, values, sums, [one.clone() for one in sums]))
        reducer.settle()
    dist.destroy_process_group()
    return found


def test_gradients_that_a_script_keeps_stay_as_they_were():
    for steps in run_ranks(keeps_gradients, 2, process_group=False):
        for local, values, sums, total in steps:
            assert all(map(torch.equal, local, values))
            assert all(map(torch.equal, sums, total))
            assert all(map(torch.allclose, sums, [2 * one for one in values]))


def test_gradients_of_a_type_of_their_own_keep_it():
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    parameter.grad_dtype = torch.float32
    reducer = GradientReducer([parameter])
    reducer.begin()
    (parameter * 1.5).sum().backward()
    reducer.finish(TwoRanks())
    reducer.show()
    assert parameter.grad.dtype == torch.float32
    assert parameter.grad.tolist() == [3.0, 3.0]


class TwoRanks:
    """Plays a rank that has the same gradients as this one."""

    def __init__(self):
        self.is_broken = False

    def size(self):
        return 2

    def allreduce(self, tensors):
        tensors[0].mul_(2)
        return self

    def wait(self):
        if self.is_broken:
            raise RuntimeError("a rank is gone")


def test_change_of_rows_is_refused_too():
    table = torch.nn.Embedding(5, 2, sparse=True)
    reducer = GradientReducer(table.parameters())
    for passes in (1, 2):
        reducer.begin()
        for _ in range(passes):
            table(torch.tensor([1, 3])).sum().backward()
            table.weight.grad.mul_(0.5)
        with pytest.raises(ProgramError, match="changed before they were sums"):
            reducer.finish(TwoRanks())


def second_pass_on_one_rank():
    """Rank 1 has a second pass in its last part, and rank 0 has no part at all."""
    dist.init_process_group("gloo")
    body, _ = model()
    wanted = [one for one in body.parameters() if one.requires_grad]
    reducer = GradientReducer(wanted, bucket_bytes=1)
    reducer.begin()
    if dist.get_rank() == 1:
        reducer.send_with(dist.group.WORLD)
        for _ in range(2):
            body(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    reducer.finish(dist.group.WORLD)
    dist.destroy_process_group()
    return reducer.sums


def test_bucket_is_sent_again_by_ranks_that_did_not_change_it():
    body, _ = model()
    for _ in range(2):
        body(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    wanted = [one.grad for one in body.parameters() if one.requires_grad]
    for sums in run_ranks(second_pass_on_one_rank, 2, process_group=False):
        assert all(map(torch.allclose, sums, wanted))


def clips_behind_versions(number, *, has_been_watched):
    """A step whose gradient is clipped by way of `.data`, in one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        weight = torch.nn.Parameter(torch.ones(2))
        reducer = GradientReducer([weight])
        if has_been_watched:
            reducer.begin()
            reducer.watch(number)
            weight.sum().backward()
            reducer.finish(dist.group.WORLD)
        reducer.begin()
        reducer.watch(number)
        weight.sum().backward()
        weight.grad.data.clamp_(max=0.5)
        reducer.finish(dist.group.WORLD)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("number", "watched"), [(1, False), (7, False), (64, True)])
def test_change_that_counts_no_version_is_refused_in_steps_that_are_watched(
    number, watched
):
    with pytest.raises(ProgramError, match="perhaps through"):
        clips_behind_versions(number, has_been_watched=watched)
    clips_behind_versions(7, has_been_watched=True)  # No step to be looked at.


def test_gradient_that_a_hook_has_taken_away_is_refused():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        reducer = GradientReducer([weight])
        reducer.begin()
        weight.sum().backward()
        with pytest.raises(ProgramError, match="a hook that clips"):
            reducer.finish(dist.group.WORLD)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64]
)
def test_passes_that_nothing_has_changed_are_seen_as_such(dtype):
    weight = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    contents = GradientContents([weight])
    (weight * float("nan")).abs().sum().backward()
    contents.take(0, weight.grad)
    weight.abs().sum().backward()
    contents.take(0, weight.grad)
    assert not contents.has_changed([weight.grad])
    contents.close()
    rows = torch.nn.Embedding(4, 2, sparse=True)
    contents = GradientContents([rows.weight])
    rows(torch.tensor([1, 1, 3])).sum().backward()
    contents.take(0, rows.weight.grad)
    assert not contents.has_changed([rows.weight.grad])
    rows.weight.grad._values().data.zero_()
    assert contents.has_changed([rows.weight.grad])
    contents.close()
