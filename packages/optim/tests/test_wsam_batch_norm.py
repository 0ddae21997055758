"""Running statistics count a batch once, whatever happens in the second pass."""

import pytest
import torch
from torch import nn

from drivetrain_optim.wsam._batch_norm import RunningStatistics
from drivetrain_optim.wsam._wsam import WSAM

LAYERS = {
    "1d": (lambda: nn.BatchNorm1d(3), (4, 3)),
    "2d": (lambda: nn.BatchNorm2d(3), (4, 3, 2, 2)),
    "3d": (lambda: nn.BatchNorm3d(3), (4, 3, 2, 2, 2)),
    "cumulative": (lambda: nn.BatchNorm1d(3, momentum=None), (4, 3)),
    "lazy": (nn.LazyBatchNorm1d, (4, 3)),
    "instance": (lambda: nn.InstanceNorm1d(3, track_running_stats=True), (4, 3, 5)),
    "no statistics": (lambda: nn.BatchNorm1d(3, track_running_stats=False), (4, 3)),
    "plain instance": (lambda: nn.InstanceNorm2d(3), (4, 3, 2, 2)),
    "sync in eval": (lambda: nn.SyncBatchNorm(3).eval(), (4, 3)),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other take longer than these layers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(make, shape):
    torch.manual_seed(0)
    first = nn.Conv1d(3, 3, 1) if len(shape) == 3 else nn.Identity()
    scale = nn.ParameterList([nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))])
    model = nn.ModuleDict({"first": first, "norm": make(), "scale": scale})

    def loss(x):
        weight = model["scale"][0].view(1, 3, *[1] * (x.ndim - 2))
        return (model["norm"](model["first"](x * weight)) ** 3).sum()

    return model, loss


def buffers(model):
    return {name: b.clone() for name, b in model.named_buffers()}


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("driver", ["block", "two steps", "closure", "failing block"])
def test_wsam_second_pass_is_not_counted(make, shape, driver):
    model, loss = build(make, shape)
    twin, twin_loss = build(make, shape)
    batches = [torch.randn(shape) for _ in range(3)]
    with torch.no_grad():
        for m, f in ((model, loss), (twin, twin_loss)):
            f(batches[0])  # materializes what is lazy
            for p in m.parameters():
                p.requires_grad_(True)
    base = torch.optim.SGD(model.parameters(), lr=0.0)  # so that both see the same
    wsam = WSAM(base, model=model, rho=0.5)
    for x in batches:
        twin_loss(x)
        if driver == "closure":
            wsam.step(lambda x=x: loss(x).backward())
        else:
            wsam.zero_grad()
            loss(x).backward()
            if driver == "two steps":
                wsam.first_step()
                loss(x).backward()
                wsam.second_step()
            elif driver == "block":
                with wsam.perturb():
                    loss(x).backward()
                wsam.step()
            else:
                with pytest.raises(ZeroDivisionError), wsam.perturb():
                    print(loss(x), 1 / 0)
        assert same(buffers(model), buffers(twin))


def test_wsam_second_pass_normalizes_with_the_batch():
    layer = nn.BatchNorm1d(2, affine=False)
    weight = nn.Parameter(torch.ones(2))
    wsam = WSAM(torch.optim.SGD([weight], lr=0.1), model=layer)
    x = torch.randn(8, 2) * 5 + 3
    layer(x * weight).square().sum().backward()
    with wsam.perturb():
        out = layer(x * weight)
        assert int(layer.num_batches_tracked) == 2
        torch.testing.assert_close(out.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
        out.sum().backward()
    wsam.step()
    assert int(layer.num_batches_tracked) == 1


def test_wsam_without_a_model_freezes_nothing():
    layer = nn.BatchNorm1d(2)
    wsam = WSAM(torch.optim.SGD(layer.parameters(), lr=0.1))
    wsam.step(lambda: layer(torch.randn(4, 2)).square().sum().backward())
    assert int(layer.num_batches_tracked) == 2


def test_wsam_layers_in_eval_mode_are_left_alone():
    layer = nn.BatchNorm1d(2)
    layer.eval()
    before = buffers(layer)
    wsam = WSAM(torch.optim.SGD(layer.parameters(), lr=0.1), model=layer)
    wsam.step(lambda: layer(torch.randn(4, 2)).square().sum().backward())
    assert same(before, buffers(layer))


def test_wsam_freezes_within_a_compiled_model():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    # What other tests have compiled of such layers counts for none here.
    torch.compiler.reset()
    layer = nn.BatchNorm1d(2)
    compiled = torch.compile(layer, backend=backend)
    wsam = WSAM(torch.optim.SGD(layer.parameters(), lr=0.1), model=compiled)
    for step in range(3):
        x = torch.randn(4, 2)
        wsam.step(lambda x=x: compiled(x).square().sum().backward())
        assert int(layer.num_batches_tracked) == step + 1
        assert len(graphs) == 1, "the second pass must not compile again"


def test_running_statistics_keep_shared_layers_once():
    layer = nn.BatchNorm1d(2)
    saved = RunningStatistics(nn.Sequential(layer, nn.Sequential(layer)))
    assert len(saved._copies) == 3
    layer(torch.randn(4, 2))
    saved.restore()
    assert int(layer.num_batches_tracked) == 0


def test_running_statistics_of_lazy_layers_come_with_their_first_batch():
    layer = nn.LazyBatchNorm1d()
    saved = RunningStatistics(layer)
    layer(torch.randn(4, 2))
    saved.restore()
    assert layer.running_mean.shape == (2,)
