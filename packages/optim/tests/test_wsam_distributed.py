"""WSAM on several ranks equals WSAM in one process."""

import contextlib
import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from drivetrain_optim._errors import HyperparameterError, UnsupportedTensorError
from drivetrain_optim.wsam._wsam import WSAM
from drivetrain_testing import run_ranks

MODES = [
    {},
    {"decouple": False, "max_grad_norm": 0.3},
    {"adaptive": True, "every_k": 2},
]


class Odd(torch.nn.Module):
    """Shapes that do not divide by 2, one of them with a single row, and BatchNorm."""

    def __init__(self, norm=True):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(3, 5)
        self.norm = torch.nn.BatchNorm1d(5) if norm else torch.nn.Identity()
        self.last = torch.nn.Linear(5, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 3, generator=generator, dtype=torch.float64)


def backward(model, step, ranks):
    """Backward of the mean loss over the batches of some ranks."""
    for rank in ranks:
        (model(batch(step, rank)).square().sum() / len(ranks)).backward()


def make(model, **options):
    base = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    return WSAM(base, model=model, rho=0.3, **options)


def values(model):
    named = [(n.removeprefix("module."), p) for n, p in model.named_parameters()]
    return {
        n: (p.full_tensor() if isinstance(p, DTensor) else p).detach().numpy().copy()
        for n, p in named
    }


def steps(model, wsam, numbers, ranks, form="block", first_pass=contextlib.nullcontext):
    for step in numbers:
        if form == "closure":
            wsam.step(lambda step=step: backward(model, step, ranks))
            continue
        wsam.zero_grad()
        if not wsam.needs_second_pass:
            backward(model, step, ranks)
            wsam.step()
            continue
        with first_pass():
            backward(model, step, ranks)
        with wsam.perturb():
            backward(model, step, ranks)
        wsam.step()


def close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-7, atol=1e-10)


@contextlib.contextmanager
def reductions():
    """Lists how many elements each all-reduce of WSAM had."""
    sizes = []
    real = dist.all_reduce

    def spy(tensor, *args, **kwargs):
        sizes.append(tensor.numel())
        return real(tensor, *args, **kwargs)

    dist.all_reduce = spy
    try:
        yield sizes
    finally:
        dist.all_reduce = real


def on_two_ranks(modes, folder):
    """Everything that takes two ranks, in one pair of processes: starting one is slow."""
    return {
        "ddp": train_ddp(modes),
        "local": train_local(modes),
        "missing": local_in_two_dtypes_with_a_parameter_unused_on_one_rank(),
        "refusals": refusals_and_overflows_of_local_gradients(),
        "statistics": batch_norm_under_ddp(),
        "sharded": train_sharded(modes, folder),
        "alone": rank_without_a_gradient(),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    by_rank = run_ranks(on_two_ranks, 2, MODES, str(folder))
    return {name: [results[name] for results in by_rank] for name in by_rank[0]}


def train_ddp(modes):
    """All modes, forms and ways to keep gradients, with the averaged gradient."""
    rank = dist.get_rank()
    results = []
    for mode in modes:
        for form, view in (("block", False), ("block", True), ("closure", True)):
            model = DistributedDataParallel(
                Odd(norm=False).double(), gradient_as_bucket_view=view
            )
            steps(model, make(model, **mode), range(4), [rank], form)
            results.append(values(model))
    return results


@pytest.mark.slow
def test_wsam_under_ddp_equals_one_process(ranks):
    expected = []
    for mode in MODES:
        model = Odd(norm=False).double()
        steps(model, make(model, **mode), range(4), [0, 1])
        expected += [values(model)] * 3
    for results in ranks["ddp"]:
        for found, value in zip(results, expected, strict=True):
            close(found, value)


def train_local(modes):
    rank = dist.get_rank()
    results = []
    for mode in modes:
        for form in ("block", "closure"):
            model = DistributedDataParallel(Odd(norm=False).double())
            wsam = make(model, gradient="local", **mode)
            with reductions() as calls:
                steps(model, wsam, range(4), [rank], form, model.no_sync)
            results.append((values(model), calls))
    return results


def reference_of_shards(**mode):
    """One process: each rank's gradient at that rank's own perturbed weights."""
    model = Odd(norm=False).double()
    base = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    rho, a, bound = 0.3, 9.0, mode.get("max_grad_norm")
    params = list(model.parameters())
    direction = None

    def gradient(step, rank):
        base.zero_grad()
        backward(model, step, [rank])
        return torch.cat([p.grad.reshape(-1) for p in params])

    def put(vector):
        pieces = vector.split([p.numel() for p in params])
        return [v.reshape(p.shape) for v, p in zip(pieces, params, strict=True)]

    def clipped(g):
        return g if bound is None else g * min(1.0, float(bound / (g.norm() + 1e-6)))

    def load(vector):
        with torch.no_grad():
            for p, v in zip(params, put(vector), strict=True):
                p.copy_(v)

    for step in range(4):
        w = torch.cat([p.detach().reshape(-1) for p in params])
        firsts = [gradient(step, rank) for rank in (0, 1)]
        g = clipped(sum(firsts) / 2)
        if step % mode.get("every_k", 1) == 0:
            seconds = []
            for rank, own in enumerate(firsts):
                e = rho * own / own.norm()
                if mode.get("adaptive"):
                    e = rho * w**2 * own / (w * own).norm()
                load(w + e)
                seconds.append(gradient(step, rank))
            load(w)
            gs = clipped(sum(seconds) / 2)
            difference = gs - g
            direction = (gs - gs @ g / (g @ g) * g) / g.norm()
        else:
            difference = g.norm() * direction
        decouple = mode.get("decouple", True)
        for p, v in zip(
            params, put(g if decouple else g + a * difference), strict=True
        ):
            p.grad = v.clone()
        base.step()
        if decouple:
            with torch.no_grad():
                for p, v in zip(params, put(difference), strict=True):
                    p.sub_(0.02 * a * v)
    return values(model)


@pytest.mark.slow
def test_wsam_with_local_gradients_equals_a_perturbation_for_each_shard(ranks):
    expected = [value for mode in MODES for value in [reference_of_shards(**mode)] * 2]
    modes = [mode for mode in MODES for _ in range(2)]
    for results in ranks["local"]:
        for (found, calls), value, mode in zip(results, expected, modes, strict=True):
            close(found, value)
            num_passes = 2 if mode.get("every_k") == 2 else 4
            assert calls == [26] * num_passes, "one packed all-reduce for each pass"


def local_in_two_dtypes_with_a_parameter_unused_on_one_rank():
    rank = dist.get_rank()
    params = [
        torch.nn.Parameter(torch.ones(2)),
        torch.nn.Parameter(torch.ones(3, dtype=torch.float64)),
        torch.nn.Parameter(torch.ones(1)),
    ]
    wsam = WSAM(torch.optim.SGD(params, lr=1.0), gamma=0.5, gradient="local")
    params[0].grad = torch.full((2,), 1.0 + rank)
    if rank == 0:
        params[1].grad = torch.full((3,), 4.0, dtype=torch.float64)
        params[2].grad = torch.ones(1)
    with reductions() as calls, wsam.perturb():
        params[0].grad = torch.full((2,), 0.5)  # as DDP averages it
        params[1].grad = torch.full((3,), 2.5, dtype=torch.float64)
    wsam.step()
    return calls, [p.detach().tolist() for p in params]


@pytest.mark.slow
def test_wsam_with_local_gradients_counts_missing_ones_as_zero(ranks):
    for calls, weights in ranks["missing"]:
        assert sorted(calls) == [3, 3]
        # 1 - g - (gs - g), with g the average
        assert weights == [[0.5, 0.5], [-1.5, -1.5, -1.5], [1.0]]


def refusals_and_overflows_of_local_gradients():
    rank = dist.get_rank()
    errors = []
    mesh = init_device_mesh("cpu", (2,))
    sharded = torch.nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Shard(0)]))
    base = torch.optim.SGD([sharded], lr=0.1)
    try:
        WSAM(base, gradient="local")
    except UnsupportedTensorError as error:
        errors.append(str(error))
    plain = torch.nn.Parameter(torch.ones(2))
    wsam = WSAM(torch.optim.SGD([plain], lr=0.1), gradient="local")
    try:
        wsam.step(lambda: plain.sum().backward())
    except HyperparameterError as error:
        errors.append(str(error))
    # One rank overflows: all skip, and all scalers back off alike.
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(plain.sum() * (float("inf") if rank else 1.0)).backward()
    with wsam.perturb(scaler=scaler):
        moved = not torch.equal(plain, torch.ones(2))
        scaler.scale(plain.sum()).backward()
    scaler.step(wsam)
    scaler.update()
    return errors, moved, plain.tolist(), scaler.get_scale()


@pytest.mark.slow
def test_wsam_with_local_gradients_refuses_what_it_must_and_skips_together(ranks):
    for rank, (errors, moved, weights, scale) in enumerate(ranks["refusals"]):
        assert "got DTensor parameters in group 0" in errors[0]
        assert "with a closure needs a model with no_sync()" in errors[1]
        assert moved == (rank == 0)
        assert weights == [1.0, 1.0]
        assert scale == 2.0


def batch_norm_under_ddp():
    rank = dist.get_rank()
    model = DistributedDataParallel(Odd().double())
    steps(model, make(model), range(3), [rank])
    return {n: b.numpy().copy() for n, b in model.module.named_buffers()}


def test_wsam_under_ddp_counts_each_batch_once(ranks):
    first, _ = ranks["statistics"]
    assert first["norm.num_batches_tracked"] == 3


def shard(reshard, keep):
    model = Odd(norm=False).double()
    fully_shard(model.first, reshard_after_forward=reshard)
    fully_shard(model.last, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    if keep:
        model.set_reshard_after_backward(False)
    return model


def train_sharded(modes, folder):
    rank = dist.get_rank()
    results, reduced = [], []
    for reshard, keep in ((True, False), (False, False), (False, True)):
        for mode in modes:
            model = shard(reshard, keep)
            wsam = make(model, **mode)
            with reductions() as calls:
                steps(model, wsam, range(4), [rank])
            reduced.append(calls)
            results.append(values(model))
    # A restart from a distributed checkpoint, half way between two second passes.
    model = shard(True, False)
    wsam = make(model, **modes[-1])
    steps(model, wsam, range(1), [rank])
    wsam.zero_grad()
    dcp.save({"optim": get_optimizer_state_dict(model, wsam)}, checkpoint_id=folder)
    wsam = make(model)
    state = {"optim": get_optimizer_state_dict(model, make(model, **modes[-1]))}
    dcp.load(state, checkpoint_id=folder)
    set_optimizer_state_dict(model, wsam, optim_state_dict=state["optim"])
    sharded = isinstance(wsam.state[model.first.weight]["wsam_direction"], DTensor)
    steps(model, wsam, range(1, 4), [rank])
    results.append(values(model))
    empty = any(p.to_local().numel() == 0 for p in model.parameters())
    return results, reduced, sharded, empty


def test_wsam_under_fsdp2_equals_one_process(ranks):
    expected = []
    for mode in MODES:
        model = Odd(norm=False).double()
        steps(model, make(model, **mode), range(4), [0, 1])
        expected.append(values(model))
    expected = [*expected * 3, expected[-1]]
    for results, reduced, sharded, _ in ranks["sharded"]:
        for found, value in zip(results, expected, strict=True):
            close(found, value)
        assert sharded
        # For each pass one scalar; then at once all norms that a step needs.
        assert reduced[0] == [1] * 4
        assert reduced[1] == [1, 2] * 4
        assert reduced[2] == [1, 3, 1] * 2
    assert any(empty for *_, empty in ranks["sharded"])


def norm_over_a_mesh_of_two_dimensions():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    results = []
    for placements in (
        [Replicate(), Shard(0)],
        [Replicate(), Replicate()],
        [Shard(0), Shard(1)],
        [Shard(0), Replicate()],
    ):
        whole = torch.arange(1.0, 17.0, dtype=torch.float64).reshape(4, 4)
        sharded = torch.nn.Parameter(
            torch.distributed.tensor.distribute_tensor(whole.clone(), mesh, placements)
        )
        plain = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        wsam = WSAM(torch.optim.SGD([sharded, plain], lr=0.1), rho=1.0)
        grad = torch.arange(16.0, dtype=torch.float64).reshape(4, 4)
        sharded.grad = torch.distributed.tensor.distribute_tensor(
            grad, mesh, [Replicate(), Replicate()]
        )
        plain.grad = torch.full((2,), 3.0, dtype=torch.float64)
        with wsam.perturb():
            results.append((sharded.full_tensor() - whole).detach().numpy())
        wsam.restore()
    return results


def test_wsam_norm_counts_replicas_once():
    grad = np.arange(16.0).reshape(4, 4)
    expected = grad / np.sqrt((grad**2).sum() + 18)
    for results in run_ranks(norm_over_a_mesh_of_two_dimensions, 4):
        for result in results:
            np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-14)


def rank_without_a_gradient():
    """A pass must not hang when a rank has no gradient of a sharded parameter."""
    mesh = init_device_mesh("cpu", (2,))
    params = [
        torch.nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Shard(0)]))
        for _ in range(2)
    ]
    wsam = WSAM(torch.optim.SGD(params, lr=0.1), rho=1.0)
    if dist.get_rank() == 0:
        params[0].grad = DTensor.from_local(torch.full((2,), 3.0), mesh, [Shard(0)])
    with wsam.perturb():
        moved = params[0].to_local().detach() - 1
    return moved.tolist()


def test_wsam_rank_without_a_gradient_takes_part_in_the_norm(ranks):
    one, other = ranks["alone"]
    assert one == pytest.approx([0.5**0.5] * 2)
    assert other == [0.0, 0.0]


def test_wsam_local_in_one_process_is_global():
    models = [Odd().double() for _ in range(2)]
    for model, gradient in zip(models, ("local", "global"), strict=True):
        steps(model, make(model, gradient=gradient), range(2), [0], "closure")
    one, other = map(values, models)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert copy.deepcopy(models[0]) is not None
