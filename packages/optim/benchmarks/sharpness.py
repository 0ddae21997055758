"""What a step of WSAM costs, and that two processes equal one."""

import torch
from speed import LiveBytes
from torch.nn.parallel import DistributedDataParallel

from drivetrain_optim import WSAM
from drivetrain_testing import Row, run_ranks


def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512)
    return torch.nn.Sequential(*layers)


def batch(step, rank=None):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, 512, generator=generator)
    return x if rank is None else x.chunk(2)[rank]


def train(module, x_of_step, num_steps=3):
    wsam = WSAM(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), rho=0.05)
    for step in range(num_steps):
        wsam.zero_grad()
        module(x_of_step(step)).square().mean().backward()
        with wsam.perturb():
            module(x_of_step(step)).square().mean().backward()
        wsam.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def passes(quick):
    """Forward and backward passes of a step."""
    module = model()
    wsam = WSAM(torch.optim.SGD(module.parameters(), lr=0.1))
    counts = {"forward": 0, "backward": 0}
    module.register_forward_hook(
        lambda *_: counts.update(forward=counts["forward"] + 1)
    )
    module[0].weight.register_post_accumulate_grad_hook(
        lambda _: counts.update(backward=counts["backward"] + 1)
    )
    module(batch(0)).square().mean().backward()
    with wsam.perturb():
        module(batch(0)).square().mean().backward()
    wsam.step()
    return Row(
        figure=f"{counts['forward']} forward, {counts['backward']} backward",
        holds=counts == {"forward": 2, "backward": 2},
    )


def buffers(quick):
    """Tensors that live between the passes, in sizes of the parameters."""
    worst = 0.0
    for every_k in (1, 2):
        module = model()
        base = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        wsam = WSAM(base, every_k=every_k)
        size = sum(p.nbytes for p in module.parameters())
        for step in range(4):
            wsam.zero_grad(set_to_none=False)
            module(batch(step)).square().mean().backward()
            if not wsam.needs_second_pass:
                wsam.step()
                continue
            with LiveBytes() as counter:
                wsam.first_step()
            # The gradient of the second pass is the user's own, as without WSAM.
            worst = max(worst, counter.live / size)
            module(batch(step)).square().mean().backward()
            wsam.second_step()
    return Row(figure=f"{worst:.2f} parameter sets", holds=worst <= 2.001)


def on_rank():
    rank = torch.distributed.get_rank()
    return train(DistributedDataParallel(model()), lambda step: batch(step, rank))


def processes(quick):
    """Two Gloo ranks with half of the batch each, against one process with all."""
    alone = train(model(), batch)
    gaps = [float((w - alone).abs().max()) for w in run_ranks(on_rank, 2)]
    worst = max(gaps) / float(alone.abs().max())
    return Row(figure=f"{worst:.1e}", holds=worst <= 1e-6, proven_on="cpu-gloo")
