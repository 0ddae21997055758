"""Rows of torch's tests of DistributedDataParallel, on the CPU.

Many of them ask for two GPUs only to put a module there; what they check is the same.
"""

import copy
import warnings
from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch_rows import CLOSE, RowsOf, error_of, warned_of

DDP = DistributedDataParallel
row = RowsOf("distributed_test.py")
common = RowsOf("test_c10d_common.py")
gloo = RowsOf("test_c10d_gloo.py")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))


def batch(step=0, rows=4, columns=4):
    """Other numbers on each rank and in each step, the same in each run."""
    start = (dist.get_rank() + 1) * (step + 2)
    numbers = torch.arange(float(rows * columns)).reshape(rows, columns)
    return torch.sin(numbers + start)


def grads(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def train(model, steps=3, call=None, lr=0.1):
    """Trains; returns the gradients of each step and the weights."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=lr), []
    for step in range(steps):
        optimizer.zero_grad()
        out = call(model, step) if call else model(batch(step))
        out.square().mean().backward()
        found.append(grads(model))
        optimizer.step()
    return found, list(model.parameters())


def trained(test, checks, make=mlp, file=row, call=None, **options):
    """Registers a row that trains what `make` gives, with options of DDP."""

    def run():
        return train(DDP(make(), **options), call=call)

    file.add(test, checks, run, close=CLOSE)


trained("test_DistributedDataParallelCPU", "gradients and weights")
trained(
    "test_DistributedDataParallelCPU_grad_is_view",
    "gradients are parts of buckets",
    gradient_as_bucket_view=True,
)
trained("test_gloo_backend_cpu_module", "small buckets", file=gloo, bucket_cap_mb=0.001)
trained(
    "test_gloo_backend_cpu_module_grad_is_view",
    "small buckets that are views",
    file=gloo,
    bucket_cap_mb=0.001,
    gradient_as_bucket_view=True,
)
trained("test_static_graph_api_cpu", "a graph that stays", static_graph=True)
trained("test_ddp_broadcast_buffer", "no buffers", broadcast_buffers=False)
trained(
    "test_create_with_bucket_cap_mb_list", "caps", bucket_cap_mb_list=[0.0001, 0.001]
)
trained("test_large_bucket_cap_mb", "one bucket", bucket_cap_mb=1000)
trained("test_small_bucket_cap_mb", "a bucket each", bucket_cap_mb=1e-6)
trained(
    "test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
    "without a first broadcast",
    init_sync=False,
)


@row("test_DistributedDataParallel_requires_grad", "no gradients at all")
def _():
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.requires_grad = False
    return error_of(DDP, model)


@row("test_ddp_zero_output_features", "a layer of no features")
def _():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DDP(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 0)))
    model(batch()).sum().backward()
    return grads(model)


@row("test_ddp_create_graph", "gradients of gradients", close=CLOSE)
def _():
    model = DDP(nn.Linear(4, 1))
    for _ in range(3):
        model(batch()).sum().backward(create_graph=True)
    return grads(model)


class Mixed(nn.Module):
    """Parameters of several kinds, one of which nobody trains."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2).double()
        self.fixed = nn.Parameter(torch.tensor([2, 2]), requires_grad=False)

    def forward(self, x):
        return self.second(self.first(x).double())


trained("test_DistributedDataParallel: two dtypes", "float and double", Mixed)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2, 4, 3, dtype=torch.cfloat))

    def forward(self, x):
        x = torch.fft.rfft2(x.reshape(1, 2, 4, 4))
        return torch.fft.irfft2(torch.einsum("nchw,cohw->nohw", x, self.weight))


@common("test_ddp_complex_params", "complex weights", close=CLOSE)
def _():
    model = DDP(Complex(), gradient_as_bucket_view=True)
    return train(model, call=lambda model, step: model(batch(step, 8)))


@gloo("test_sparse_gradients", "an embedding", close=CLOSE)
def _():
    return embedded(False)


@gloo("test_sparse_gradients_grad_is_view", "an embedding, views", close=CLOSE)
def _():
    return embedded(True)


def embedded(is_view):
    torch.manual_seed(0)
    model = DDP(nn.EmbeddingBag(10, 4, sparse=True), gradient_as_bucket_view=is_view)
    rank = dist.get_rank()
    model(torch.tensor([[rank, 2], [3, rank + 4]])).square().sum().backward()
    return grads(model)


class Tasks(nn.Module):
    """Rank 0 uses the first, others the second, nobody the third."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([torch.ones(2, 2) for _ in range(3)])

    def forward(self, x):
        return self.parts[0 if dist.get_rank() == 0 else 1] + x


for _suffix, _options in (
    ("", {}),
    ("_with_grad_is_view", {"gradient_as_bucket_view": True}),
    ("_with_static_graph", {"static_graph": True}),
):

    def _unused(options=_options):
        model = DDP(Tasks(), find_unused_parameters=True, **options)
        error = error_of(lambda: model(batch(0, 2, 2)).mean().backward())
        return error, grads(model)

    gloo.add(f"test_global_local_unused_params_grad{_suffix}", "who uses what", _unused)


@gloo("test_find_unused_parameters_when_unused_parameters_empty", "on one rank")
def _():
    class Both(Tasks):
        def forward(self, x):
            both = self.parts[1] + self.parts[0] + self.parts[2]
            return both + x if dist.get_rank() == 0 else self.parts[1] + x

    model = DDP(Both(), find_unused_parameters=True)
    model(batch(0, 2, 2)).mean().backward()
    return grads(model)


def ignores(model):
    for _ in range(3):
        model(batch())
    return train(model)


for _test, _options in (
    ("test_ignored_output", {}),
    ("test_ignored_output_with_unused_parameters", {"find_unused_parameters": True}),
):
    gloo.add(
        _test,
        "forwards without backwards",
        lambda options=_options: ignores(DDP(mlp(), **options)),
        close=CLOSE,
    )


@gloo("test_save_load_checkpoint", "a state dict in the middle", close=CLOSE)
def _():
    model, plain = DDP(mlp()), mlp()
    train(model)
    state = copy.deepcopy(model.state_dict())
    again = DDP(mlp())
    again.load_state_dict(state)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    plain.load_state_dict(state)
    return train(model), train(again), list(plain.parameters())


def without_sync(options, hook=None):
    model = DDP(mlp(), **options)
    if hook:
        model.register_comm_hook(None, hook)
    found = []
    for step in range(4):
        if step % 2 == 0:
            with model.no_sync():
                model(batch(step)).square().mean().backward()
        else:
            model(batch(step)).square().mean().backward()
        found.append(grads(model))
        if step == 1:
            model.zero_grad()
    return found


def sums(state, bucket):
    """A hook: the mean of all ranks."""
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / 3)


def sums_and_doubles(state, bucket):
    return sums(state, bucket).then(lambda done: done.value() * 2)


for _suffix, _options, _hook in (
    ("", {}, None),
    ("_grad_is_view", {"gradient_as_bucket_view": True}, None),
    ("_allreduce_hook", {}, sums),
    ("_allreduce_with_then_hook", {}, sums_and_doubles),
):
    row.add(
        f"test_accumulate_gradients_no_sync{_suffix}",
        "steps of one rank between",
        lambda options=_options, hook=_hook: without_sync(options, hook),
        close=CLOSE,
    )


@row("test_grads_same_across_ranks_with_no_sync", "and each rank's own", close=CLOSE)
def _():
    model = DDP(mlp())
    with model.no_sync():
        model(batch()).mean().backward()
    own = grads(model)
    model(batch(1)).mean().backward()
    return own, grads(model)


@row("test_get_future", "two futures, one after the other")
def _():
    tensor = torch.full((3,), dist.get_rank() + 1.0)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: [2 * done.value()[0]])
    return doubled.then(lambda done: [3 * done.value()[0]]).wait()


# Inputs that end earlier on some ranks.


def uneven(model, *, given=None, rows=None, **join):
    found = []
    with model.join(**join):
        for step in range(rows or dist.get_rank() + 2):
            model.zero_grad()
            model(batch(step)).square().mean().backward()
            found.append(grads(model))
    return found if dist.get_rank() == 2 else found[:2]


for _test, _join in (
    ("test_ddp_uneven_inputs", {}),
    ("test_ddp_grad_div_uneven_inputs", {"divide_by_initial_world_size": False}),
    ("test_ddp_join_model_equivalence", {"divide_by_initial_world_size": True}),
):
    row.add(
        _test,
        f"ranks that end earlier, {_join or 'by default'}",
        lambda join=_join: uneven(DDP(mlp()), **join),
        close=CLOSE,
    )


@row("test_ddp_uneven_inputs: weights", "the same on all ranks then", close=CLOSE)
def _():
    model = DDP(mlp())
    with model.join():
        train(model, steps=2 + dist.get_rank())
    return list(model.parameters())


@row("test_ddp_uneven_input_join_disable", "as many on each rank", close=CLOSE)
def _():
    return uneven(DDP(mlp()), rows=3, enable=False)


@row("test_ddp_uneven_input_exception", "an error of a module")
def _():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            raise ValueError("this module fails")

    return error_of(uneven, DDP(Fails()))


@row("test_ddp_uneven_inputs_stop_iteration_sync_bn", "an error of early ranks")
def _():
    group = dist.new_group()
    model = DDP(mlp(), process_group=group)
    error = error_of(uneven, model, throw_on_early_termination=True)
    return error if isinstance(error, str) else error.kinds


@row("test_ddp_join_respects_forward_sync_buffers_false", "buffers stay", close=CLOSE)
def _():
    model = DDP(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), broadcast_buffers=False
    )
    uneven(model)
    return [one.clone() for one in model.buffers()]


# What a forward returns.

Pair = namedtuple("Pair", "a b")


@dataclass
class Outputs:
    first: object
    second: dict


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.make = nn.Linear(4, 2), nn.Linear(4, 2), make

    def forward(self, x):
        return self.make(self.one(x), self.two(x))


def returned(make, use, **options):
    model = DDP(Returns(make), find_unused_parameters=True, **options)
    found = []
    for step in range(2):
        model.zero_grad()
        out = model(batch(step))
        use(out).square().mean().backward()
        found.append([type(out).__name__, grads(model)])
    return found


for _file, _test, _make, _use in (
    (row, "test_ddp_namedtuple", Pair, lambda o: o.a + o.b),
    (row, "test_output_unused_in_loss_tuple_module", Pair, lambda o: o.a),
    (
        row,
        "test_output_unused_in_loss_dict_module",
        lambda a, b: {"a": a, "b": b},
        lambda o: o["a"],
    ),
    (
        common,
        "test_dataclass_output",
        lambda a, b: Outputs(a, {"b": b}),
        lambda o: o.first + o.second["b"],
    ),
    (
        common,
        "test_dataclass_output_unused_param",
        lambda a, b: Outputs(None, {"b": b}),
        lambda o: o.second["b"],
    ),
):
    _file.add(
        _test,
        "what a forward returns",
        lambda make=_make, use=_use: returned(make, use),
        close=CLOSE,
    )


@row("test_ddp_static_graph_nested_types", "lists in dicts", close=CLOSE)
def _():
    model = DDP(Returns(lambda a, b: {"x": [a, {"y": (b,)}]}), static_graph=True)

    def call(model, step):
        out = model(batch(step))
        return out["x"][0] + out["x"][1]["y"][0]

    return train(model, call=call)


@row("test_ddp_returns_tensor_with_no_grad", "a detached tensor", close=CLOSE)
def _():
    model = DDP(Returns(lambda a, b: (a + b, a.detach())))
    return train(model, call=lambda model, step: model(batch(step))[0])


@row("test_undefined_grad_parity_unused_parameters", "no gradient at all", close=CLOSE)
def _():
    return returned(Pair, lambda o: o.a * 1.0, gradient_as_bucket_view=True)


@row("test_ddp_control_flow_same_across_ranks", "every other step", close=CLOSE)
def _():
    model = DDP(Returns(Pair), find_unused_parameters=True)
    return train(model, 4, lambda model, step: model(batch(step))[step % 2])


@row("test_ddp_control_flow_different_across_ranks", "by rank", close=CLOSE)
def _():
    model = DDP(Returns(Pair), find_unused_parameters=True)
    return train(
        model, 4, lambda model, step: model(batch(step))[(step + dist.get_rank()) % 2]
    )


@row("test_ddp_unused_params_rebuild_buckets_exception", "an unused layer")
def _():
    model = DDP(Returns(lambda a, b: a), process_group=dist.new_group())
    error = error_of(train, model)
    # The text names the parameters' places.
    return (
        error.kinds,
        "find_unused_parameters=True" in error.text,
        "unused" in error.text,
    )


@row("test_invalid_static_graph", "a graph that changes")
def _():
    group = dist.new_group()
    model = DDP(Returns(Pair), process_group=group, static_graph=True)
    return error_of(
        train, model, 3, lambda model, step: model(batch(step))[step % 2]
    ).kinds


@row("test_detect_ddp_is_actually_static", "what DDP has noticed", close=CLOSE)
def _():
    model = DDP(mlp(), find_unused_parameters=True)
    found = train(model, 4)
    return found, model._get_ddp_logging_data().get("can_set_static_graph")


@row("test_static_graph_multi_forward", "two forwards of a step", close=CLOSE)
def _():
    model = DDP(mlp(), static_graph=True)
    return train(model, call=lambda m, step: m(batch(step)) + m(batch(step + 5)))


@common("test_ddp_buffer_sync_multi_forward_with_batchnorm", "two", close=CLOSE)
def _():
    model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    error = error_of(
        lambda: (model(batch()).mean() + model(batch(1)).mean()).backward()
    )
    return error, grads(model), [one.clone() for one in model.buffers()]


# Activations that are computed again.


class Checkpointed(nn.Module):
    def __init__(self, reentrant, twice=False, shared=False):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        if shared:
            self.one.weight = self.two.weight
        self.reentrant, self.twice = reentrant, twice

    def forward(self, x):
        x = self.one(x)
        for _ in range(2 if self.twice else 1):
            x = checkpoint(self.two, x, use_reentrant=self.reentrant)
        return x


def checkpointed(options, **of_module):
    model = DDP(Checkpointed(**of_module), process_group=dist.new_group(), **options)
    error = error_of(train, model)
    return error if isinstance(error, str) else error.kinds, grads(model)


for _reentrant in (True, False):
    for _test, _module, _options in (
        ("once", {}, {}),
        ("unused_params", {}, {"find_unused_parameters": True}),
        ("twice", {"twice": True}, {}),
        ("twice_static_graph", {"twice": True}, {"static_graph": True}),
        ("weight_sharing", {"shared": True}, {}),
        (
            "twice_weight_sharing",
            {"twice": True, "shared": True},
            {"static_graph": True},
        ),
    ):
        common.add(
            f"test_ddp_checkpointing_{_test}: use_reentrant={_reentrant}",
            "activations computed again",
            lambda options=_options, module=_module, reentrant=_reentrant: checkpointed(
                options, reentrant=reentrant, **module
            ),
            close=CLOSE,
        )


@row("test_ddp_broadcast_buffers_deprecation_warning", "warnings of DDP")
def _():
    return warned_of(lambda: DDP(mlp(), broadcast_buffers=True))
