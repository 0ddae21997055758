"""Gradients that are summed over ranks, in one step after another."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_core.testing import run_ranks
from drivetrain_elastic._reducer import GradientReducer


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
        found.append([one.grad.clone() for one in parameters if one.requires_grad])
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


def test_gradients_stay_in_their_buffers_after_zero_grad():
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    reducer = GradientReducer(layer.parameters())
    optimizer.zero_grad()
    reducer.begin()
    layer(torch.ones(1, 2)).sum().backward()
    assert sum(buffer.sum() for buffer in reducer.buffers) == 6
    reducer.close()


def backward(layer, times=1):
    layer(torch.full((1, 2), float(times))).sum().backward()


def test_gradients_of_the_last_step_stay_until_the_next_backward_pass():
    layer = torch.nn.Linear(2, 2)
    reducer = GradientReducer(layer.parameters())
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    reducer.begin()
    backward(layer)
    reducer.finish(group)
    asked = []
    reducer.begin(lambda: asked.append(reducer.buffers[0].sum().item()))
    layer(torch.ones(1, 2))
    assert not asked
    backward(layer, 2)
    backward(layer, 3)
    assert asked == [6]
    assert reducer.buffers[0].sum() == 2 + 2 + 4 * 5
    reducer.finish(group)
    # A step without a backward pass asks as well, and its gradients are zero.
    reducer.begin(lambda: asked.append("again"))
    reducer.finish(group)
    assert asked == [6, "again"]
    assert [one.grad.sum() for one in layer.parameters()] == [0, 0]


def test_gradients_that_others_may_lack_are_not_written_over():
    layer = torch.nn.Linear(2, 2)
    reducer = GradientReducer(layer.parameters())
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    reducer.begin()
    backward(layer)
    reducer.finish(group)

    def refuse():
        asked.append(1)
        raise RuntimeError("a rank is gone")

    for passes in (0, 2):
        asked = []
        reducer.begin(refuse)
        for _ in range(passes):
            reducer.send_with(group)
            backward(layer, 9)
        with pytest.raises(RuntimeError, match="a rank is gone"):
            reducer.finish(group)
        assert asked == [1]
        assert reducer.buffers[0].sum() == 6
    # What the optimizer finds is what the buffers hold.
    reducer.bind()
    assert sum(one.grad.sum() for one in layer.parameters()) == 6
