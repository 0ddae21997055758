"""The Triton kernels on a real GPU: no waiting, CUDA graphs, agreement of the paths."""

import pytest
import torch

from drivetrain_optim import AGD, LAMB
from drivetrain_optim.fused import _triton

pytestmark = pytest.mark.gpu

KINDS = [AGD, LAMB]
SIZES = [(), (0,), (7,), (33, 65), (4097,), (1024, 1024)]


def parameters(dtype=torch.float32, sizes=SIZES):
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(s, generator=generator).to("cuda", dtype) for s in sizes]
    return [torch.nn.Parameter(value) for value in values]


def set_grads(params, step):
    for position, p in enumerate(params):
        if p.grad is None:
            p.grad = torch.empty_like(p)
        noise = torch.Generator(device="cuda").manual_seed(31 * step + position)
        p.grad.normal_(generator=noise)


def paths(optimizer):
    layouts = optimizer._layouts.values()
    return {part.batch.kind.path for layout in layouts for part in layout.parts}


def test_triton_gpu_kernels_pass_their_check():
    assert _triton.find_fault(torch.device("cuda", 0)) is None
    assert _triton.missing_because(torch.device("cuda", 0)) is None


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_triton_gpu_paths_agree(kind, dtype, max_grad_norm):
    rtol = {torch.float32: 1e-5, torch.float64: 1e-11, torch.bfloat16: 2**-7}[dtype]
    results = []
    for choice in ({}, {"foreach": False}):
        params = parameters(dtype)
        optimizer = kind(params, lr=0.01, max_grad_norm=max_grad_norm, **choice)
        for step in range(5):
            set_grads(params, step)
            optimizer.step()
        results.append(params)
        assert paths(optimizer) == ({"loop"} if choice else {"triton"})
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    "options",
    [{}, {"capturable": True}, {"max_grad_norm": 1.0}, {"stochastic_rounding": True}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_triton_gpu_step_never_waits(kind, dtype, options):
    params = parameters(dtype)
    optimizer = kind(params, lr=0.01, **options)
    set_grads(params, 0)
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in (1, 2):
            for p in params:
                p.grad = torch.full_like(p, 0.5 + step)
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert paths(optimizer) == {"triton"}


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_triton_gpu_graph_replays_equal_eager_steps(kind, dtype, max_grad_norm):
    options = {"lr": 0.01, "capturable": True, "max_grad_norm": max_grad_norm}
    captured, eager = parameters(dtype), parameters(dtype)
    in_graph, by_hand = kind(captured, **options), kind(eager, **options)
    for params, optimizer in ((captured, in_graph), (eager, by_hand)):
        for step in range(3):
            set_grads(params, step)
            optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        in_graph.step()
    for step in range(3, 8):
        set_grads(captured, step)
        graph.replay()
        set_grads(eager, step)
        by_hand.step()
    # Between replays an eager step must find its own table.
    for params, optimizer in ((captured, in_graph), (eager, by_hand)):
        set_grads(params, 8)
        optimizer.step()
    set_grads(captured, 9)
    graph.replay()
    set_grads(eager, 9)
    by_hand.step()
    assert paths(in_graph) == {"triton"}
    for one, other in zip(captured, eager, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_triton_gpu_steps_repeat_to_the_bit(kind):
    results = []
    for _ in range(2):
        params = parameters()
        optimizer = kind(params, lr=0.01, max_grad_norm=1.0)
        for step in range(3):
            set_grads(params, step)
            optimizer.step()
        results.append(params)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_triton_gpu_steps_of_another_stream_equal_those_of_the_first(kind):
    plain, moved = parameters(), parameters()
    one, other = (kind(ps, lr=0.01, max_grad_norm=1.0) for ps in (plain, moved))
    side = torch.cuda.Stream()
    for step in range(4):
        set_grads(plain, step)
        one.step()
        set_grads(moved, step)
        if step % 2:  # the table was copied by the other stream
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                other.step()
            torch.cuda.current_stream().wait_stream(side)
        else:
            other.step()
    for p, q in zip(plain, moved, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", KINDS)
def test_triton_gpu_graph_of_a_whole_step_equals_eager_steps(kind):
    x = torch.randn(64, 256, device="cuda")

    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)))
        model.cuda()
        options = {"lr": 0.01, "capturable": True, "max_grad_norm": 1.0}
        optimizer = kind(model.parameters(), **options)

        def step():
            optimizer.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
            optimizer.step()

        return model, step

    (captured, in_graph), (eager, by_hand) = make(), make()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            in_graph()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        in_graph()
    for _ in range(3):
        by_hand()
    for number in range(4):
        x.normal_(generator=torch.Generator(device="cuda").manual_seed(number))
        graph.replay()
        by_hand()
    for p, q in zip(captured.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q)
