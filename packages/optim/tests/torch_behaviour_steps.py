"""Rows of what a step does: directions, schedules, groups, and gradients of all kinds."""

import torch
from torch.optim import lr_scheduler
from torch_behaviour import EVERY, Regression, row, same

SCHEDULES = {
    "none": (),
    "StepLR, ReduceLROnPlateau": (
        lambda o: lr_scheduler.StepLR(o, gamma=0.9, step_size=10),
        lr_scheduler.ReduceLROnPlateau,
    ),
    "ExponentialLR": (lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),),
    "LinearLR": (lambda o: lr_scheduler.LinearLR(o, 0.4, total_iters=4),),
    "ConstantLR, ExponentialLR": (
        lambda o: lr_scheduler.ConstantLR(o, factor=0.4, total_iters=4),
        lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),
    ),
    "PolynomialLR": (lambda o: lr_scheduler.PolynomialLR(o, power=0.9, total_iters=4),),
}


def _go(subject, optimizer, problem, schedulers=(), number=20):
    closure = problem.closure(optimizer)
    for _ in range(number):
        loss = subject.step(optimizer, closure)
        for scheduler in schedulers:
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(loss.detach())
            else:
                scheduler.step()


@row(
    "test_optim_infos_do_not_specify_global_cliquey_kwargs",
    "the options that rows go through leave foreach, fused and differentiable open",
    once=True,
)
def options_leave_ways_open(subject, way):
    del way
    for options in subject.inputs:
        assert not options.keys() & {"foreach", "fused", "differentiable"}
        assert "foreach" in subject.build(Regression().params).param_groups[0]


def _right_direction(contiguous, schedules):
    def run(subject, way):
        for name in schedules:
            for options in subject.all_inputs(way):
                if not contiguous and way.name == "fused":
                    options.pop("fused")
                problem = Regression(contiguous=contiguous)
                optimizer = subject.build(problem.params, **options)
                before = problem.loss().item()
                schedulers = [make(optimizer) for make in SCHEDULES[name]]
                _go(subject, optimizer, problem, schedulers)
                problem.moves_as_asked(before, options)

    return run


row(
    "test_forloop_goes_right_direction",
    "20 steps lower the loss, or raise it with maximize",
)(_right_direction(True, ["none"]))
row(
    "test_forloop_goes_right_direction: not contiguous",
    "the same with parameters that are not dense in memory; fused is left open",
)(_right_direction(False, ["none"]))
row(
    "test_forloop_goes_right_direction: schedules",
    "the same under schedules of the learning rate, one or several at a time",
    slow=True,
)(_right_direction(True, [name for name in SCHEDULES if name != "none"]))


@row(
    "test_param_group_with_lrscheduler_goes_right_direction",
    "a schedule moves the rates of two groups, and the loss goes down",
)
def group_with_scheduler(subject, way):
    for make_all in SCHEDULES.values():
        problem = Regression()
        groups = [{"params": [problem.weight]}, {"params": [problem.bias], "lr": 0.01}]
        optimizer = subject.build(groups, **way.options)
        before = problem.loss().item()
        _go(subject, optimizer, problem, [make(optimizer) for make in make_all])
        assert problem.loss().item() < before


@row(
    "test_tensor_lr",
    "a tensor of 0, 1 or 2 dimensions as lr steps as the number, and is scheduled",
)
def tensor_lr(subject, way):
    for options in subject.all_inputs(way):
        for number_of_dims in range(3):
            problem = Regression()
            twin = problem.twin()
            lr = torch.full((1,) * number_of_dims, 1e-3, device="cpu")
            first = subject.build(problem.params, **{**options, "lr": 1e-3})
            second = subject.build(twin.params, **{**options, "lr": lr})
            schedulers = [
                lr_scheduler.ExponentialLR(optimizer, 0.9)
                for optimizer in (first, second)
            ]
            for _ in range(5):
                subject.step(first, problem.closure(first))
                subject.step(second, twin.closure(second))
                for scheduler in schedulers:
                    scheduler.step()
                same(twin.params, problem.params)
            assert second.param_groups[0]["lr"] is lr, "the user's tensor is kept"


def _two_coordinates(param):
    x, y = param
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


@row(
    "test_rosenbrock_sparse",
    "sparse gradients step as their dense form, where the optimizer supports them",
    refused=EVERY,
    as_in_torch="all refuse them but SGD, Adagrad and SparseAdam",
)
def sparse_gradients(subject, way):
    param = torch.nn.Parameter(torch.tensor([1.5, 1.5]))
    optimizer = subject.build([param], lr=1e-3, **way.options)

    def closure():
        optimizer.zero_grad()
        loss = _two_coordinates(param)
        loss.backward()
        param.grad = param.grad.to_sparse()
        return loss

    subject.step(optimizer, closure)


@row(
    "test_complex",
    "complex parameters step as their view as real ones",
    refused=EVERY,
    as_in_torch="Adafactor, Muon and SparseAdam have supports_complex=False",
)
def complex_parameters(subject, way):
    params = [torch.randn(10, 5, dtype=torch.complex64, requires_grad=True)]
    subject.build(params, **way.options)


@row(
    "test_complex: the way out",
    "views of complex tensors as real ones are stepped, beside real tensors",
)
def views_of_complex(subject, way):
    number = torch.randn(4, 3, dtype=torch.complex64)
    view = torch.view_as_real(number).requires_grad_()
    plain = torch.view_as_real(number.clone()).clone().requires_grad_()
    real = [torch.randn(5, requires_grad=True) for _ in range(2)]
    real[1].data.copy_(real[0].data)
    for params in ([view, real[0]], [plain, real[1]]):
        optimizer = subject.build(params, lr=0.01, **way.options)

        def closure(params=params, optimizer=optimizer):
            optimizer.zero_grad()
            loss = sum(p.square().sum() for p in params)
            loss.backward()
            return loss

        for _ in range(3):
            subject.step(optimizer, closure)
    same(view.detach(), plain.detach())
    same(torch.view_as_real(number), plain.detach())


@row(
    "test_complex_2d",
    "a complex tensor steps as its real and its imaginary part",
    refused=EVERY,
    as_in_torch="Adafactor, Muon and SparseAdam have supports_complex=False",
)
def complex_2d(subject, way):
    params = [torch.randn(2, dtype=torch.complex64, requires_grad=True)]
    subject.build(params, **way.options)


@row(
    "test_param_groups_weight_decay",
    "groups with and without decay step by their own, and the loss goes as asked",
)
def groups_weight_decay(subject, way):
    for options in subject.all_inputs(way):
        per_group = {k: v for k, v in options.items() if k not in _OF_ALL_GROUPS}
        problem = Regression()
        groups = [
            {"params": [problem.weight], **per_group},
            {"params": [problem.bias], **per_group, "weight_decay": 0.0},
        ]
        optimizer = subject.build(groups)
        before = problem.loss().item()
        _go(subject, optimizer, problem)
        problem.moves_as_asked(before, options)


# What WSAM has for all groups at a time; AGD and LAMB have each option by group.
_OF_ALL_GROUPS = {"adaptive", "decouple", "every_k"}


@row(
    "test_param_groups_lr",
    "a group with next to no learning rate stays where it is, the others go",
)
def groups_lr(subject, way):
    for options in subject.all_inputs(way):
        per_group = {k: v for k, v in options.items() if k not in _OF_ALL_GROUPS}
        problem = Regression()
        still = torch.nn.Parameter(torch.randn(2))
        kept = still.detach().clone()
        groups = [
            {"params": problem.params, "lr": 1e-3, **per_group},
            {"params": [still]},
        ]
        optimizer = subject.build(groups, lr=1e-28)

        def closure(problem=problem, optimizer=optimizer, still=still):
            loss = problem.closure(optimizer)()
            still.grad = torch.rand_like(still)
            return loss

        before = problem.loss().item()
        for _ in range(20):
            subject.step(optimizer, closure)
        problem.moves_as_asked(before, options)
        assert torch.equal(still, kept)


@row(
    "test_step_is_noop_when_params_have_no_grad",
    "a step with no gradient changes nothing, without an error",
)
def no_gradients(subject, way):
    for options in subject.all_inputs(way):
        params = [torch.randn(2, 3) for _ in range(2)]
        kept = [p.clone() for p in params]
        optimizer = subject.build(params, **options)
        assert optimizer.step(lambda: torch.tensor([1.0])).item() == 1
        same(params, kept)


@row(
    "test_step_is_noop_for_zero_grads",
    "a step of zeros without weight decay changes no weight",
)
def zero_gradients(subject, way):
    for options in subject.all_inputs(way):
        if options.get("weight_decay", 0) != 0:
            continue
        param = torch.randn((5, 1), requires_grad=True)
        kept = param.detach().clone()
        decay = {"weight_decay": 0.0}
        optimizer = subject.build([param], **{**options, **decay, "lr": 1e-5})

        def closure(param=param):
            param.grad = torch.zeros_like(param)

        subject.step(optimizer, closure)
        same(param.detach(), kept)


@row(
    "test_second_order_optims_return_consistent_types",
    "step returns what the closure returns, of the same type whatever happens within",
)
def returns_the_loss(subject, way):
    for options in subject.all_inputs(way):
        problem = Regression()
        optimizer = subject.build(problem.params, **options)
        full = optimizer.step(problem.closure(optimizer))
        empty = optimizer.step(lambda: torch.tensor([10.0]))
        assert type(full) is type(empty) is torch.Tensor
