"""Rows that need a GPU, or two: graphs, memory, and state that changes the device."""

import gc
from copy import deepcopy

import pytest
import torch
from torch_behaviour import EVERY, OURS_ALONE, Regression, row, same
from torch_behaviour_ways import mixed, network


@row(
    "test_forloop_goes_right_direction_multigpu",
    "parameters on two GPUs in one optimizer: the loss goes as asked",
    where="multigpu",
)
def two_gpus(subject, way):
    for options in subject.all_inputs(way):
        weight = torch.nn.Parameter(torch.randn(10, 5, device="cuda:0"))
        bias = torch.nn.Parameter(torch.randn(10, device="cuda:1"))
        data = torch.randn(5, device="cuda:0")
        optimizer = subject.build([weight, bias], **options)

        def loss(weight=weight, bias=bias, data=data):
            return (weight.mv(data).to("cuda:1") + bias).square().sum()

        def closure(optimizer=optimizer, loss=loss):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        before = loss().item()
        for _ in range(20):
            subject.step(optimizer, closure)
        after = loss().item()
        assert after > before if options.get("maximize") else after < before


@row(
    "test_mixed_device_dtype",
    "parameters of four dtypes on two GPUs step as by the loop",
    where="multigpu",
)
def mixed_devices(subject, way):
    mixed(subject, way, ["cuda:0", "cuda:1"], 7 if way.name == "foreach" else 1)


def _large(subject, needed_bytes, **options):
    if torch.cuda.get_device_properties(0).total_memory < needed_bytes:
        pytest.skip(f"2 ** 32 elements need {needed_bytes >> 30} GiB here")
    if "SGD" not in subject.name:
        options["state_dtype"] = None
    param = torch.ones(2**32, dtype=torch.float16)
    optimizer = subject.build([param], lr=0.5, **options)

    def closure():
        param.grad = torch.zeros_like(param)
        param.grad[-1] = 1

    subject.step(optimizer, closure)
    assert bool(param[0] == 1)
    assert bool(param[-1] != 1)


@row(
    "test_foreach_large_tensor",
    "foreach steps a tensor of 2 ** 32 elements: indices of 32 bits do not do",
    where="gpu",
    slow=True,
    once=True,
)
def foreach_large(subject, way):
    del way
    # Arithmetic is in float32, with copies of all that is kept in float16.
    _large(subject, 200 << 30, foreach=True)


@row(
    "test_fused_large_tensor",
    "fused steps a tensor of 2 ** 32 elements",
    where="gpu",
    slow=True,
    once=True,
)
def fused_large(subject, way):
    del way
    _large(subject, (200 if subject.second_pass else 72) << 30, fused=True)


@row(
    "test_peak_memory_foreach",
    "foreach takes no more than three lists of temporaries above the loop",
    where="gpu",
    once=True,
)
def peak_memory(subject, way):
    del way
    for options in subject.inputs:
        peaks = []
        for flag in (False, True):
            params = [torch.rand(16, 8) for _ in range(10)]
            optimizer = subject.build(params, foreach=flag, **options)
            grads = [torch.rand_like(p) for p in params]

            def closure(params=params, grads=grads):
                for param, grad in zip(params, grads, strict=True):
                    param.grad = grad

            subject.step(optimizer, closure)
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            subject.step(optimizer, closure)
            gc.collect()
            peaks.append(torch.cuda.max_memory_allocated())
            del params, grads, optimizer, closure
        assert peaks[1] <= peaks[0] + 3 * 10 * 16 * 8 * 4


@row(
    "test_cpu_load_state_dict",
    "a state saved on a CPU loads into a fused or capturable optimizer on a GPU",
    where="gpu",
    once=True,
)
def load_from_cpu(subject, way):
    del way
    flags = ["fused", *(["capturable"] if subject.name in OURS_ALONE else [])]
    for flag in flags:
        here = torch.tensor([0.1, 0.2], device="cpu")
        optimizer = subject.build([here])

        def closure(param=here):
            param.grad = torch.full_like(param, 0.5)

        subject.step(optimizer, closure)
        saved = deepcopy(optimizer.state_dict())
        saved["param_groups"][0][flag] = True
        there = here.detach().to("cuda")
        other = subject.build([there], **{flag: True})
        other.load_state_dict(saved)

        def on_gpu(param=there):
            param.grad = torch.full_like(param, 0.5)

        subject.step(optimizer, closure)
        subject.step(other, on_gpu)
        same(there.cpu(), here.detach(), rtol=1e-5, atol=1e-6)


@row(
    "test_state_dict_with_cuda_params",
    "a state of the CPU loads on a GPU and is left as it was; step counts stay on the "
    "CPU unless the step is capturable, and both go on alike",
    where="gpu",
)
def state_to_gpu(subject, way):
    for options in subject.all_inputs(way):
        with torch.device("cpu"):
            problem = Regression()
        optimizer = subject.build(problem.params, **options)
        for _ in range(3):
            subject.step(optimizer, problem.closure(optimizer))
        twin = problem.twin()
        twin.weight, twin.bias = (
            torch.nn.Parameter(p.detach().clone().to("cuda")) for p in twin.params
        )
        twin.params, twin.data = [twin.weight, twin.bias], problem.data.to("cuda")
        other = subject.build(twin.params, **options)
        saved = deepcopy(optimizer.state_dict())
        other.load_state_dict(saved)
        same(saved, optimizer.state_dict())
        for state in other.state.values():
            if "step" in state:
                assert state["step"].device.type == "cpu"
        for _ in range(5):
            subject.step(optimizer, problem.closure(optimizer))
            subject.step(other, twin.closure(other))
            ended = [p.detach().cpu() for p in twin.params]
            same(ended, [p.detach() for p in problem.params], rtol=1e-4, atol=1e-5)


@row(
    "test_fused_cpu_matches_cuda",
    "the fused steps of a CPU and of a GPU end alike",
    where="gpu",
    once=True,
)
def fused_cpu_and_gpu(subject, way):
    del way
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        narrow = dtype in {torch.bfloat16, torch.float16}
        close = (
            {"rtol": 2**-6, "atol": 5e-3} if narrow else {"rtol": 1e-4, "atol": 1e-5}
        )
        ends = []
        for device in ("cpu", "cuda"):
            with torch.device("cpu"):
                model, data = network(dtype)
            model, data = model.to(device), data.to(device)
            optimizer = subject.build(model.parameters(), fused=True)

            def closure(model=model, data=data, optimizer=optimizer):
                optimizer.zero_grad()
                loss = model(data).sum()
                loss.backward()
                return loss

            for _ in range(7):
                subject.step(optimizer, closure)
            ends.append([p.detach().cpu() for p in model.parameters()])
        same(ends[1], ends[0], **close)


def _replayed(subject, options, *, graph):
    """Steps three times, then twice more, by the step or by replays of its graph."""
    torch.manual_seed(0)
    params = [torch.randn(size, requires_grad=True) for size in ((5, 5), (6, 6), ())]
    grads = [[torch.randn_like(p) for p in params] for _ in range(5)]
    optimizer = subject.build(params, lr=0.1, **options)
    for param, grad in zip(params, grads[0], strict=True):
        param.grad = grad.clone()

    def take(number):
        for param, grad in zip(params, grads[number], strict=True):
            param.grad.copy_(grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(3):
            take(number)
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    if graph:
        with torch.cuda.graph(recorded):
            optimizer.step()
    for number in (3, 4):
        take(number)
        if graph:
            recorded.replay()
        else:
            optimizer.step()
    return [p.detach() for p in params]


@row(
    "TestCudaOptims.test_graph_optims",
    "a step captured in a CUDA graph replays as the step, where there is capturable",
    where="gpu",
    left_out=EVERY - OURS_ALONE,
    as_in_torch="the test is for those with has_capturable_arg, without SGD and "
    "Adagrad; WSAM has no such option, and runs backward within its step",
    once=True,
)
def graph_of_a_step(subject, way):
    del way
    for options in ({}, {"fused": True}, {"weight_decay": 0.1, "maximize": True}):
        given = {**options, "capturable": True}
        plain = _replayed(subject, given, graph=False)
        same(_replayed(subject, given, graph=True), plain)


@row(
    "TestCudaOptims.test_graph_scaling_fused_optimizers",
    "a captured step of gradients that a GradScaler has unscaled replays as the step",
    where="gpu",
    left_out=EVERY - OURS_ALONE,
    as_in_torch="the test is for those with has_capturable_arg, without SGD and "
    "Adagrad; WSAM has no such option, and runs backward within its step",
    once=True,
)
def graph_with_scaler(subject, way):
    del way
    ends = []
    for graph in (False, True):
        torch.manual_seed(0)
        params = [torch.randn(5, 5, requires_grad=True) for _ in range(2)]
        grads = [torch.randn_like(p) for p in params]
        optimizer = subject.build(params, lr=0.1, fused=True, capturable=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
        scaler.scale(torch.zeros(()))

        def scaled(params=params, grads=grads, optimizer=optimizer, scaler=scaler):
            for param, grad in zip(params, grads, strict=True):
                if param.grad is None:
                    param.grad = torch.empty_like(param)
                param.grad.copy_(grad * 4)
            scaler.unscale_(optimizer)

        for _ in range(3):
            scaled()
            scaler.step(optimizer)
            scaler.update()
        recorded = torch.cuda.CUDAGraph()
        if graph:
            with torch.cuda.graph(recorded):
                optimizer.step()
        for _ in range(2):
            scaled()
            if graph:
                recorded.replay()
            else:
                optimizer.step()
            scaler.update()
        ends.append([p.detach() for p in params])
    same(ends[1], ends[0])
