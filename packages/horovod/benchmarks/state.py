"""`TorchState.save` beside what it cannot do without: a copy of each tensor."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from drivetrain_testing import Row

WIDTH, LAYERS, BOUND = 1024, 8, 1.5


def copied(model, optimizer):
    tensors = [*model.state_dict().values()]
    for slots in optimizer.state.values():
        tensors += [value for value in slots.values() if torch.is_tensor(value)]
    return [tensor.clone() for tensor in tensors]


def seconds(action):
    began = time.perf_counter()
    kept = action()
    took = time.perf_counter() - began
    del kept
    return took


def measure(quick):
    """The ratio of the two, the median over alternated turns."""
    from drivetrain_horovod import on_elastic as hvd

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, WIDTH)).square().mean().backward()
    optimizer.step()
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0, epoch=0)
    ratios = []
    for _ in range(5 if quick else 31):
        ours = seconds(state.save)
        ratios.append(ours / seconds(lambda: copied(model, optimizer)))
    ratio = statistics.median(ratios)
    return Row(
        figure=f"{ratio:.2f} x a copy of the tensors",
        holds=ratio <= BOUND,
        proven_on="cpu-gloo",
        details={"ratios": ratios},
    )
