"""Rows of mixed precision: what a GradScaler asks of a step."""

import torch
from torch_behaviour import EVERY, row, same
from torch_behaviour_ways import LOOP, network


@row(
    "test_fused_does_not_step_if_foundinf",
    "a fused step takes found_inf and grad_scale from GradScaler, and does nothing if "
    "it is set",
    refused=EVERY,
    as_in_torch="loop and foreach refuse both; GradScaler itself unscales and leaves "
    "out the steps of what does not take them",
)
def found_inf(subject, way):
    params = [torch.ones(1) for _ in range(5)]
    optimizer = subject.build(params, **way.options)
    optimizer.grad_scale = None
    optimizer.found_inf = torch.ones(())

    def closure():
        for param in params:
            param.grad = torch.ones_like(param)

    subject.step(optimizer, closure)


@row(
    "TestCudaOptims.test_grad_scaling_autocast_fused_optimizers",
    "a scaled fused training under autocast ends as an unscaled one by the loop, with "
    "and without unscale_, and skips a step whose gradients overflow",
)
def grad_scaling(subject, way):
    for unscales in (False, True):
        ends = []
        for scaled in (False, True):
            model, data = network(seed=3)
            options = way.options if scaled else LOOP
            optimizer = subject.build(model.parameters(), lr=0.01, **options)
            scaler = torch.amp.GradScaler(way.device, init_scale=128.0, enabled=scaled)
            for number in range(4):
                bad = number == 1
                if bad and not scaled:
                    continue
                _scaled_step(
                    subject, model, data, optimizer, scaler, way, bad, unscales
                )
            ends.append([p.detach() for p in model.parameters()])
        same(ends[1], ends[0], rtol=1e-4, atol=1e-5)


def _scaled_step(subject, model, data, optimizer, scaler, way, bad, unscales):
    def backward():
        optimizer.zero_grad()
        with torch.autocast(way.device, dtype=torch.bfloat16):
            loss = model(data).float().sum()
        scaler.scale(loss * (float("inf") if bad else 1.0)).backward()

    backward()
    if subject.second_pass:
        with optimizer.perturb(scaler=scaler):
            backward()
    if unscales:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@row(
    "test_torch.test_params_invalidated_with_grads_invalidated_between_unscale_and_step",
    "what is written into gradients between unscale_ and step is used: the weights of "
    "the step are not finite",
)
def invalidated_gradients(subject, way):
    model, data = network()
    optimizer = subject.build(model.parameters(), lr=1.0, **way.options)
    scaler = torch.amp.GradScaler(way.device, init_scale=128.0)
    scaler.scale(model(data).sum()).backward()
    if subject.second_pass:
        with optimizer.perturb(scaler=scaler):
            scaler.scale(model(data).sum()).backward()
    scaler.unscale_(optimizer)
    for param in model.parameters():
        param.grad.fill_(float("nan"))
    scaler.step(optimizer)
    scaler.update()
    for param in model.parameters():
        assert param.isnan().any() or param.isinf().any()
