"""Rows of torch.compile around a step: alone, in a function, in a whole training step."""

import torch
from torch.optim import lr_scheduler
from torch_behaviour import EVERY, row, same

from drivetrain_core import DrivetrainError

# What Dynamo makes of a step is asked here, not what a compiler makes of its graphs.
BACKEND = "eager"


def _network():
    torch.manual_seed(2)
    layers = [torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)]
    return torch.nn.Sequential(*layers)


def _batches(sizes):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, 4, generator=generator) for size in sizes]


def _ends_alike(subject, way, compiled_step, *, sizes=(3, 3, 3), **options):
    """Trains a network plainly and with a step that `compiled_step` makes.

    Args:
        subject: The optimizer.
        way: The way.
        compiled_step: Takes model and optimizer; returns a function of a batch.
        sizes: Those of the batches.
        **options: More options of the optimizer.
    """
    ends = []
    torch.compiler.reset()
    for make in (None, compiled_step):
        model = _network()
        lr = options.get("lr", 0.01)
        lr = lr.clone() if isinstance(lr, torch.Tensor) else lr
        given = {**options, **way.options, "lr": lr}
        optimizer = subject.build(model.parameters(), **given)
        schedules = [lr_scheduler.ExponentialLR(optimizer, 0.9)]
        step = make(model, optimizer) if make else _plain(subject, model, optimizer)
        for batch in _batches(sizes):
            step(batch)
            for schedule in schedules:
                schedule.step()
        ends.append([p.detach() for p in model.parameters()])
    same(ends[1], ends[0])


def _closure(model, optimizer, batch):
    def compute():
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        return loss

    return compute


def _plain(subject, model, optimizer):
    return lambda batch: subject.step(optimizer, _closure(model, optimizer, batch))


@row(
    "CompiledOptimizerParityTests.test_correctness: step alone",
    "torch.compile(optimizer.step) ends as the step itself, under a schedule",
    slow=True,
)
def step_alone(subject, way):
    def make(model, optimizer):
        step = torch.compile(optimizer.step, backend=BACKEND)

        def run(batch):
            closure = _closure(model, optimizer, batch)
            if subject.second_pass:
                return step(closure)
            closure()
            return step()

        return run

    _ends_alike(subject, way, make)


@row(
    "CompiledOptimizerParityTests.test_correctness: in a function, with a closure",
    "a compiled function that steps with a closure ends as the same without compile",
    slow=True,
)
def step_in_function(subject, way):
    def make(model, optimizer):
        @torch.compile(backend=BACKEND)
        def run(closure):
            return optimizer.step(closure)

        return lambda batch: run(_closure(model, optimizer, batch))

    _ends_alike(subject, way, make)


@row(
    "CompiledOptimizerParityTests.test_correctness: tensor lr, under a schedule",
    "the same with a tensor as lr, which a schedule changes in place",
    slow=True,
)
def step_with_tensor_lr(subject, way):
    def make(model, optimizer):
        @torch.compile(backend=BACKEND)
        def run(closure):
            return optimizer.step(closure)

        return lambda batch: run(_closure(model, optimizer, batch))

    _ends_alike(subject, way, make, lr=torch.tensor(0.01, device="cpu"))


def _whole(subject, model, optimizer, **settings):
    @torch.compile(backend=BACKEND, **settings)
    def train(batch):
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        if subject.second_pass:
            with optimizer.perturb():
                model(batch).square().sum().backward()
        optimizer.step()
        return loss

    return train


@row(
    "compile: a whole training step",
    "forward, backward and step in one compiled function end as without compile",
    slow=True,
)
def whole_step(subject, way):
    _ends_alike(subject, way, lambda model, o: _whole(subject, model, o))


@row(
    "compile: a whole training step, dynamic shapes",
    "the same with dynamic=True and batches of several sizes",
    slow=True,
)
def whole_step_dynamic(subject, way):
    _ends_alike(
        subject,
        way,
        lambda model, o: _whole(subject, model, o, dynamic=True),
        sizes=(3, 5, 2, 7),
    )


@row(
    "compile: the model is compiled, with dynamic shapes",
    "a compiled model and a plain step end as without compile",
    slow=True,
)
def compiled_model(subject, way):
    def make(model, optimizer):
        compiled = torch.compile(model, backend=BACKEND, dynamic=True)
        return _plain(subject, compiled, optimizer)

    _ends_alike(subject, way, make, sizes=(3, 5, 2, 7))


@row(
    "compile: recompiles when an option or a state changes",
    "CompiledOptimizerTests: a new learning rate, and a moment that was replaced, count",
    slow=True,
)
def changes_count(subject, way):
    ends = []
    for is_compiled in (False, True):
        torch.compiler.reset()
        model = _network()
        optimizer = subject.build(model.parameters(), lr=0.01, **way.options)
        step = optimizer.step
        if is_compiled:
            step = torch.compile(step, backend=BACKEND)
        for number, batch in enumerate(_batches((3, 3, 3, 3))):
            if number == 2:
                optimizer.param_groups[0]["lr"] = 0.02
            if number == 3 and subject.keeps_moments:
                state = optimizer.state[optimizer.param_groups[0]["params"][0]]
                state["exp_avg"] = torch.zeros_like(state["exp_avg"])
            closure = _closure(model, optimizer, batch)
            if subject.second_pass:
                step(closure)
            else:
                closure()
                step()
        ends.append([p.detach() for p in model.parameters()])
    same(ends[1], ends[0])


class NotOneGraphError(DrivetrainError):
    """Dynamo did not make one graph of a step."""


@row(
    "compile: fullgraph=True",
    "a step in one graph without a break; what is not says so before it changes a weight",
    refused=EVERY,
    as_in_torch="the same: the step of each has a graph break of torch's own",
    slow=True,
    once=True,
)
def full_graph(subject, way):
    torch.compiler.reset()
    model = _network()
    optimizer = subject.build(model.parameters(), lr=0.01, **way.options)
    step = torch.compile(optimizer.step, backend=BACKEND, fullgraph=True)
    closure = _closure(model, optimizer, _batches((3,))[0])
    before = [p.detach().clone() for p in model.parameters()]
    try:
        step(closure)
    except torch._dynamo.exc.Unsupported as error:
        same([p.detach() for p in model.parameters()], before)
        raise NotOneGraphError(str(error).splitlines()[0]) from error
