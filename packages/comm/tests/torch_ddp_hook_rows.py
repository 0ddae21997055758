"""Rows of torch's tests of DDP's hooks, buffers, logs and errors, on the CPU."""

import copy
import pickle
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_hook
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.distributed.algorithms.model_averaging import averagers
from torch_ddp_rows import DDP, batch, embedded, grads, mlp, sums, train
from torch_rows import CLOSE, CLOSE_HALF, RowsOf, error_of

row = RowsOf("distributed_test.py")
common = RowsOf("test_c10d_common.py")
gloo = RowsOf("test_c10d_gloo.py")
SHORT = timedelta(seconds=2)


def hooked(hook, state=None, **options):
    model = DDP(mlp(), **options)
    model.register_comm_hook(state, hook)
    return train(model)


def builtin(kind):
    model = DDP(mlp())
    model._register_builtin_comm_hook(kind)
    return train(model)


def powers(**options):
    state = power.PowerSGDState(None, matrix_approximation_rank=1, **options)
    return hooked(power.powerSGD_hook, state)


def local_steps():
    state = local_hook.PostLocalSGDState(None, dist.new_group([0, 1, 2]), 1)
    return hooked(local_hook.post_localSGD_hook, state)


for _test, _checks, _program in (
    (
        "test_ddp_hook_parity_allreduce",
        "allreduce_hook",
        lambda: hooked(default_hooks.allreduce_hook),
    ),
    (
        "test_ddp_hook_parity_allreduce_process_group",
        "allreduce_hook with a group",
        lambda: hooked(default_hooks.allreduce_hook, dist.new_group()),
    ),
    (
        "test_ddp_hook_parity_allreduce: fp16",
        "fp16_compress_hook",
        lambda: hooked(default_hooks.fp16_compress_hook),
    ),
    (
        "test_ddp_hook_parity_allreduce: bf16",
        "bf16_compress_hook",
        lambda: hooked(default_hooks.bf16_compress_hook),
    ),
    (
        "test_ddp_hook_parity_allreduce: wrapped",
        "fp16_compress_wrapper",
        lambda: hooked(default_hooks.fp16_compress_wrapper(sums)),
    ),
    ("test_ddp_hook_parity_post_localSGD", "local steps", local_steps),
    (
        "test_builtin_ddp_comm_hooks: ALLREDUCE",
        "a hook in C++",
        lambda: builtin(dist.BuiltinCommHookType.ALLREDUCE),
    ),
    (
        "test_builtin_ddp_comm_hooks: FP16_COMPRESS",
        "a hook in C++",
        lambda: builtin(dist.BuiltinCommHookType.FP16_COMPRESS),
    ),
    (
        "test_ddp_hook_parity_powerSGD",
        "from the first step",
        lambda: powers(
            start_powerSGD_iter=0, use_error_feedback=False, warm_start=False
        ),
    ),
    (
        "test_ddp_hook_parity_powerSGD: warm start",
        "from the third step",
        lambda: powers(start_powerSGD_iter=2),
    ),
):
    _is_half = "fp16" in _test.lower() or "wrapped" in _test
    row.add(_test, _checks, _program, close=CLOSE_HALF if _is_half else CLOSE)


@row("test_ddp_hook_pickling_powerSGD", "a state that was pickled", close=CLOSE)
def _():
    state = power.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=4
    )
    model = DDP(mlp())
    model.register_comm_hook(state, power.powerSGD_hook)
    train(model)
    again = pickle.loads(pickle.dumps(state))
    return again.iter, again.matrix_approximation_rank


@common("test_invalid_powerSGD_state", "states that cannot be")
def _():
    return [
        error_of(
            power.PowerSGDState,
            None,
            1,
            start_powerSGD_iter=start,
            use_error_feedback=feedback,
            warm_start=warm,
        )
        for start in (0, 1)
        for feedback, warm in ((True, True), (True, False), (False, True))
    ]


@gloo("test_ddp_comm_hook_future_passing_cpu", "a future of the hook's")
def _():
    def hook(state, bucket):
        future = torch.futures.Future()
        future.set_result(torch.ones_like(bucket.buffer()))
        return future.then(lambda done: done.value() + 1)

    return hooked(hook)


@gloo("test_ddp_invalid_comm_hook_init", "what is not a hook")
def _():
    def hook(state: object, bucket: int) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future()

    model = DDP(mlp())
    return [error_of(model.register_comm_hook, None, one) for one in (1, hook)]


@gloo("test_ddp_invalid_comm_hook_return_type", "what it returns")
def _():
    def says_so(state: object, bucket: dist.GradBucket) -> int:
        return 1

    def returns_one(state, bucket):
        return 1

    model = DDP(mlp(), process_group=dist.new_group())
    first = error_of(model.register_comm_hook, None, says_so)
    model.register_comm_hook(None, returns_one)
    return first, error_of(train, model)


@gloo("test_ddp_comm_hook_register_just_once", "a second hook")
def _():
    model = DDP(mlp())
    model.register_comm_hook(None, sums)
    return error_of(model.register_comm_hook, None, sums)


@gloo("test_ddp_comm_hook_sparse_gradients", "a hook of sparse ones", close=CLOSE)
def _():
    torch.manual_seed(0)
    model = DDP(nn.EmbeddingBag(10, 4, sparse=True))
    model.register_comm_hook(None, sums)
    rank = dist.get_rank()
    model(torch.tensor([[rank, 2], [3, rank + 4]])).square().sum().backward()
    return grads(model), embedded(False)


@row("test_ddp_comm_hook_logging", "what the log holds")
def _():
    found = []
    for hook in (None, default_hooks.allreduce_hook, sums):
        model = DDP(mlp())
        if hook:
            model.register_comm_hook(None, hook)
        found.append(model._get_ddp_logging_data().get("comm_hook", "none"))
    return found


@row("test_ddp_logging_data_cpu", "what the log holds")
def _():
    model = DDP(mlp())
    train(model, 2)
    data = model._get_ddp_logging_data()
    names = "world_size rank module_name device_ids output_device broadcast_buffers"
    names += " find_unused_parameters gradient_as_bucket_view backend_name iteration"
    names += " dtypes total_parameter_size_bytes num_parameter_tensors static_graph"
    names += " unused_parameter_size is_multi_device_module has_sync_bn"
    return {name: data.get(name) for name in names.split()}


@row("test_ddp_logging_data_cpu: the cap of buckets", "bucket_cap_bytes as given")
def _():
    return DDP(mlp(), bucket_cap_mb=3)._get_ddp_logging_data()["bucket_cap_bytes"]


@row("test_default_bucket_cap_mb_value", "the module's attributes")
def _():
    model = DDP(mlp())
    return model.bucket_bytes_cap, DDP(mlp(), bucket_cap_mb=3).bucket_bytes_cap


@row("test_ddp_python_error_logged", "an error in the log")
def _():
    model = DDP(mlp())
    model._set_static_graph()
    error = error_of(lambda: model.register_comm_hook(None, 1))
    return error, bool(model._get_ddp_logging_data().get("has_error", 0))


@row("test_verify_model_across_rank_with_logger", "shapes that differ")
def _():
    layer = nn.Linear(4, 2 + (dist.get_rank() == 1))
    error = error_of(DDP, layer, process_group=dist.new_group(timeout=SHORT))
    return error.kinds, "appears not to match" in error.text


@row("test_ddp_model_diff_num_params_across_ranks", "counts that differ")
def _():
    layers = [nn.Linear(4, 2) for _ in range(1 + (dist.get_rank() == 1))]
    error = error_of(
        DDP, nn.Sequential(*layers), process_group=dist.new_group(timeout=SHORT)
    )
    return error.kinds


@row("test_compute_bucket_assignment_by_size_sparse_error_with_logger", "sparse")
def _():
    tensor = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    found = error_of(dist._compute_bucket_assignment_by_size, [tensor], [400])
    return found if isinstance(found, str) else found.kinds


def buckets(sizes, limits):
    kinds = {"f": torch.float32, "d": torch.float64}
    tensors = [torch.empty(size, dtype=kinds[kind]) for size, kind in sizes]
    return list(dist._compute_bucket_assignment_by_size(tensors, limits))


_MIXED = [(50, "f"), (25, "d")] * 3
for _test, _sizes, _limits in (
    ("single_limit_single_dtype", [(n, "f") for n in (100, 200, 100, 50)], [400]),
    ("single_limit_multi_dtype", _MIXED, [400]),
    ("multi_limit_single_dtype", [(10, "f")] * 4, [40, 80]),
    ("multi_limit_multi_dtype", _MIXED, [200, 400]),
):
    common.add(
        f"ComputeBucketAssignmentTest.test_{_test}",
        "which bucket holds what",
        lambda sizes=_sizes, limits=_limits: buckets(sizes, limits),
    )


# Buffers, states and groups of a module.


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(2) + dist.get_rank())

    def forward(self, x):
        self.seen += x.sum().detach()
        return self.layer(x) + self.seen


@row("test_ddp_sync_module_states", "weights and buffers of rank 0")
def _():
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    return list(model.parameters()), list(model.buffers())


@row("test_ddp_broadcast_buffer: in a forward", "buffers of rank 0", close=CLOSE)
def _():
    model = DDP(Buffered())
    return train(model), list(model.buffers())


def with_buffer_hook(returns):
    def hook(ddp, buffers):
        works = [
            dist.all_reduce(one, async_op=True).get_future() for one in buffers.values()
        ]
        if returns:
            return works
        for work in works:
            work.wait()
        return []

    model = DDP(Buffered())
    place = torch.nn.parallel.distributed._BufferCommHookLocation.POST_FORWARD
    model._register_buffer_comm_hook(model, hook, place)
    return train(model), list(model.buffers())


row.add(
    "test_ddp_buffer_hook_allreduce_return_future",
    "a hook's futures",
    lambda: with_buffer_hook(True),
    close=CLOSE,
)
row.add(
    "test_ddp_buffer_hook_allreduce",
    "a hook that waits",
    lambda: with_buffer_hook(False),
    close=CLOSE,
)


@row("test_ddp_ignore_params_arg", "a layer that is left out", close=CLOSE)
def _():
    model = mlp()
    DDP._set_params_and_buffers_to_ignore_for_model(model, ["2.weight", "2.bias"])
    return train(DDP(model))


@row("test_ddp_shared_grad_acc_unused_params", "a weight twice", close=CLOSE)
def _():
    model = mlp()
    model.extra = nn.Linear(8, 8)
    model.extra.weight = model[2].weight
    model.forward = lambda x: nn.Sequential.forward(model[:4], x)
    return train(DDP(model, find_unused_parameters=True))


@row("test_ddp_remove_autograd_hooks", "no reduction then", close=CLOSE)
def _():
    model = DDP(mlp())
    model._remove_autograd_hooks()
    model(batch()).mean().backward()
    return grads(model)


for _suffix, _full in (("new_group", False), ("default_group", True)):

    def _updated(full=_full):
        model = DDP(mlp(), process_group=dist.new_group())
        first = train(model)
        model._update_process_group(dist.group.WORLD if full else dist.new_group())
        return first, train(model)

    row.add(
        f"test_ddp_update_process_group_{_suffix}",
        "another group in the middle",
        _updated,
        close=CLOSE,
    )


@row("test_ddp_inference", "in eval and without gradients", close=CLOSE)
def _():
    model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))).eval()
    with torch.no_grad():
        plain = model(batch())
    with torch.inference_mode():
        return plain, model(batch()).clone()


@row("test_stateless_api_with_ddp", "weights given to a call", close=CLOSE)
def _():
    model = DDP(nn.Linear(4, 1))
    weights = {"module.weight": torch.ones(1, 4, requires_grad=True)}
    weights["module.bias"] = torch.zeros(1, requires_grad=True)
    out = torch.func.functional_call(model, weights, (batch(),))
    out.sum().backward()
    return out, [weight.grad for weight in weights.values()]


@row("test_ddp_forward_backward_hook", "hooks of modules", close=CLOSE)
def _():
    model = mlp()
    model.register_forward_hook(lambda module, given, out: out * 2)
    model.register_full_backward_hook(lambda module, taken, given: None)
    return train(DDP(model))


@row("test_ddp_new_tensor_in_fwd", "a tensor of the forward's own", close=CLOSE)
def _():
    class Makes(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x) + torch.ones(2, requires_grad=True)

    found = [DDP(Makes(), find_unused_parameters=True), DDP(Makes(), static_graph=True)]
    return [train(model) for model in found]


@row("test_ddp_build_debug_param_to_name_mapping", "names of parameters")
def _():
    model = DDP(mlp())
    names = model._build_debug_param_to_name_mapping(list(model.module.parameters()))
    return list(names.values())


@row("test_ddp_device_mesh_initialization", "a mesh for a group", close=CLOSE)
def _():
    from torch.distributed.device_mesh import init_device_mesh

    return train(DDP(mlp(), device_mesh=init_device_mesh("cpu", (3,))))


@row("test_get_data_parallel_params", "parameters it reduces")
def _():
    from torch.distributed.utils import _get_root_modules

    model = DDP(mlp())
    return len(_get_root_modules([model])), [tuple(p.shape) for p in model.parameters()]


@row("test_ddp_compile_static_graph", "torch.compile of DDP", close=CLOSE)
def _():
    model = DDP(mlp(), static_graph=True)
    compiled = torch.compile(model, backend="eager")
    return train(model, call=lambda m, step: compiled(batch(step)))


@row("test_skip_all_reduce_unused_parameters", "an option of DDP", close=CLOSE)
def _():
    given = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    return train(DDP(mlp(), **given))


# Averages of weights.


def averaged(make, steps=5):
    model = DDP(mlp())
    averager, found = make(), []
    with model.no_sync():
        for step in range(steps):
            model.zero_grad()
            model(batch(step)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            averager.average_parameters(model.parameters())
            found.append([p.detach().clone() for p in model.parameters()])
    return found


def periodic():
    return averagers.PeriodicModelAverager(period=2, warmup_steps=1)


row.add(
    "test_periodic_model_averager",
    "each other step",
    lambda: averaged(periodic),
    close=CLOSE,
)


@row("test_average_parameters", "the mean of weights", close=CLOSE)
def _():
    from torch.distributed.algorithms.model_averaging import utils

    layer = nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(dist.get_rank() + 1.0)
    utils.average_parameters(layer.parameters(), dist.group.WORLD)
    return list(layer.parameters())


@row("test_post_localSGD_optimizer_parity", "an optimizer that averages", close=CLOSE)
def _():
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = DDP(mlp())
    state = local_hook.PostLocalSGDState(None, dist.group.WORLD, 1)
    model.register_comm_hook(state, local_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), periodic()
    )
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return list(model.parameters()), copy.deepcopy(optimizer.state_dict()["step"])
