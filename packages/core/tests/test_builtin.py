"""Every built-in keeps the contract, and refuses what it cannot do."""

from __future__ import annotations

import dataclasses
import functools
import platform
import resource

import pytest
import torch
from torch import nn

from drivetrain_core import (
    BlockFacts,
    Code,
    LoopFacts,
    Phase,
    WorldFacts,
    accelerate,
)
from drivetrain_core._choice import Ok, Reject
from drivetrain_core._model.blocks import find_blocks
from drivetrain_core._registry import find
from drivetrain_core.builtin import BUILTINS, precision
from drivetrain_testing import check_optimization, run_ranks
from drivetrain_testing._optimization import ToyModel

SLOW = {"compile"}


@pytest.mark.parametrize("name", [n for n in BUILTINS if n not in SLOW])
def test_builtin_keeps_the_contract(name):
    check_optimization(find(name))


@pytest.mark.slow
def test_compile_keeps_the_contract():
    check_optimization(find("compile"))


def refused(name, context, config=None):
    optimization = find(name)
    answer = optimization.check(context, optimization.normalize(config), ())
    assert isinstance(answer, Reject)
    assert answer.because
    return answer


def test_precision_refuses_what_is_no_fp32_model(context):
    half = dataclasses.replace(context.model, dtypes=("bfloat16", "float32"))
    mixed = dataclasses.replace(context, model=half)
    assert "bfloat16, float32" in refused("precision", mixed).because
    assert list(find("precision").configs(mixed)) == []
    assert refused("precision", context, "tf32").code == "NEEDS_DEVICE"


def test_compile_without_a_compiler_says_what_to_install(context):
    bare = dataclasses.replace(context.device, compiler_needs="a C++ compiler")
    answer = refused("compile", dataclasses.replace(context, device=bare))
    assert answer.fix == "install a C++ compiler"


def test_compile_and_checkpoint_without_blocks(context):
    flat = dataclasses.replace(
        context, model=dataclasses.replace(context.model, blocks=None)
    )
    assert (
        refused("compile", flat, "block").fix == 'use ("compile", {"scope": "whole"})'
    )
    assert [c["scope"] for c in find("compile").configs(flat)] == ["whole"]
    refused("activation_checkpoint", flat)
    assert list(find("activation_checkpoint").configs(flat)) == []


def test_checkpoint_every_k_beyond_the_blocks(context):
    assert (
        "3 blocks"
        in refused(
            "activation_checkpoint", context, {"mode": "every_k", "k": 4}
        ).because
    )


def test_micro_batch_needs_the_step_equal_samples_and_no_batch_norm(context):
    own = dataclasses.replace(
        context, loop=dataclasses.replace(context.loop, owns_step=False)
    )
    assert refused("micro_batch", own).code == "STEP_NOT_OWNED"
    norm = dataclasses.replace(
        context, model=dataclasses.replace(context.model, has_batch_norm=True)
    )
    assert "BatchNorm" in refused("micro_batch", norm).because
    assert refused("micro_batch", context, 9).code == "UNEVEN_MICROBATCH"
    assert isinstance(find("micro_batch").check(norm, {"num": 1}, ()), Ok)


def test_optimizer_impl_needs_the_option(context):
    plain = LoopFacts(optimizer="LBFGS", optimizer_options=frozenset({"lr"}))
    other = dataclasses.replace(context, loop=plain)
    assert "LBFGS has no option 'fused'" in refused("optimizer_impl", other).because
    assert list(find("optimizer_impl").configs(other)) == []


def test_data_parallel_needs_ranks_and_samples(context):
    assert "torchrun" in refused("ddp", context).fix
    many = dataclasses.replace(context, world=WorldFacts(size=16, local_size=16))
    assert refused("fsdp", many).code == "NOT_DIVISIBLE"
    four = dataclasses.replace(context, world=WorldFacts(size=4, local_size=4))
    assert refused("fsdp", four, {"shard_size": 3}).code == "NOT_DIVISIBLE"
    tied = dataclasses.replace(
        four,
        model=dataclasses.replace(
            context.model,
            tied=(("head.weight", "wte.weight"), ("head.bias", "layers.0.0.bias")),
        ),
    )
    assert refused("fsdp", tied).code == "TIED_PARAMS"
    assert "head.bias, layers.0.0.bias" in refused("fsdp", tied).because
    inside = dataclasses.replace(
        four,
        model=dataclasses.replace(
            context.model, tied=(("head.weight", "inside.weight"),)
        ),
    )
    fsdp = find("fsdp")
    assert isinstance(fsdp.check(inside, fsdp.normalize(None), ()), Ok)


def test_data_loading_needs_a_plain_loader(context):
    assert "DataLoader" in refused("data_loading", context).fix
    plain = dataclasses.replace(context.loop, loader="torch")
    ours = dataclasses.replace(context, loop=plain)
    pinned = {"workers": 1, "pin_memory": True}
    assert refused("data_loading", ours, pinned).code == "NEEDS_DEVICE"


def test_precision_bf16_params_keeps_batch_norm_in_fp32(built):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(1)
            self.head = nn.Linear(16, 5)
            self.register_buffer("table", torch.ones(5), persistent=False)

        def forward(self, images):
            return self.head(self.norm(images).flatten(1)) * self.table

    accelerated = built([("precision", "bf16_params")], model=Normed)
    module = accelerated.module
    assert module.norm.weight.dtype == module.norm.running_mean.dtype == torch.float32
    assert module.head.weight.dtype == torch.bfloat16
    assert module.table.dtype == torch.float32
    batch = next(iter(accelerated.loader))
    assert module(batch[0]).dtype == torch.float32
    assert "table" not in module.state_dict()
    assert torch.isfinite(accelerated.train_step(batch))


@pytest.mark.parametrize("dtype", ["bf16_autocast", "bf16_params"])
@pytest.mark.parametrize("has_kernel", [True, False])
def test_precision_runs_an_lstm_on_a_cpu_whose_onednn_has_none(
    built, monkeypatch, dtype, has_kernel
):
    if not has_kernel:
        monkeypatch.setattr(precision, "_has_bf16_lstm", lambda: False)
    seen = []

    class Layer(nn.LSTM):
        def forward(self, x):
            seen.append(torch._C._get_mkldnn_enabled())
            return super().forward(x)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer(4, 8, batch_first=True)
            self.head = nn.Linear(8, 5)

        def forward(self, images):
            return self.head(self.layer(images.reshape(-1, 4, 4))[0][:, -1])

    accelerated = built([("precision", dtype)], model=Recurrent)
    loss = accelerated.train_step(next(iter(accelerated.loader)))
    assert torch.isfinite(loss)
    assert seen == [precision._has_bf16_lstm()]
    assert torch._C._get_mkldnn_enabled()


def test_tied_weights_stay_tied_in_bf16(built):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 16, bias=False)
            self.second = nn.Linear(16, 16, bias=False)
            self.second.weight = self.first.weight
            self.head = nn.Linear(16, 5)

        def forward(self, images):
            return self.head(self.second(self.first(images.flatten(1))))

    module = built([("precision", "bf16_params")], model=Tied).module
    assert module.first.weight is module.second.weight


def test_checkpointed_block_recomputes(built):
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Counted(16, 16) for _ in range(3))
            self.head = nn.Linear(16, 5)

        def forward(self, images):
            x = images.flatten(1)
            for layer in self.layers:
                x = torch.relu(layer(x))
            return self.head(x)

    counts = {}
    for mode in ("off", "every_k", "full"):
        strategy = [] if mode == "off" else [("activation_checkpoint", mode)]
        accelerated = built(strategy, model=Stack)
        calls.clear()
        accelerated.train_step(next(iter(accelerated.loader)))
        counts[mode] = len(calls)
    assert counts == {"off": 3, "every_k": 5, "full": 6}


def test_channels_last_reaches_weights_and_inputs(built):
    accelerated = built(["channels_last"])
    weight = accelerated.module.stem.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_cpu_threads_are_put_back(built):
    before = torch.get_num_threads()
    accelerated = built([("cpu_threads", 1)])
    assert torch.get_num_threads() == 1
    accelerated.close()
    assert torch.get_num_threads() == before


def page_faults():
    """Pages that the kernel had to bring for eight large tensors, one after the other."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.zeros(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def faults_with_and_without_the_plan():
    plain = page_faults()
    accelerated = accelerate(
        nn.Linear(4, 2),
        functools.partial(torch.optim.SGD, lr=0.1),
        [torch.zeros(2, 4)],
        lambda model, batch: model(batch).sum(),
        strategy=["host_allocator"],
    )
    # Until the heap has room for such a tensor beside all else, some come from the kernel.
    kept = min(page_faults() for _ in range(8))
    accelerated.close()
    return plain, kept, page_faults()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_host_allocator_keeps_pages_until_the_plan_is_closed():
    # In a process of its own: where glibc was once out of memory, the thread has left the
    # heap that is told to keep pages.
    call = faults_with_and_without_the_plan
    [(before, kept, after)] = run_ranks(call, 1, process_group=False)
    # Huge pages may come instead of small ones: at least 32 for each tensor.
    assert min(before, after) >= 8 * 32
    assert kept < 32


def test_host_allocator_needs_glibc_and_a_cpu(context, monkeypatch):
    card = dataclasses.replace(context.device, type="cuda", name="a card")
    elsewhere = dataclasses.replace(context, device=card)
    assert refused("host_allocator", elsewhere).because == "the model trains on a card"
    assert list(find("host_allocator").configs(elsewhere)) == []
    monkeypatch.setattr("platform.libc_ver", lambda: ("musl", "1.2"))
    assert "not glibc" in refused("host_allocator", context).because
    assert list(find("host_allocator").configs(context)) == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_MAX_", "0"),
        ("MALLOC_TRIM_THRESHOLD_", "1048576"),
        ("MALLOC_MMAP_THRESHOLD_", "1048576"),
        ("MALLOC_TOP_PAD_", "1048576"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1048576"),
    ],
)
def test_host_allocator_leaves_an_allocator_that_is_tuned(
    context, monkeypatch, name, value
):
    monkeypatch.setenv(name, value)
    answer = refused("host_allocator", context)
    assert (answer.code, answer.fix) == (Code.CONFLICT, f"unset {name}")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_host_allocator_does_not_mind_what_else_is_tuned(context, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=4096")
    check = find("host_allocator").check(context, {}, [])
    assert isinstance(check, Ok)


def test_blocks_are_the_largest_list():
    small = nn.ModuleList(nn.Linear(2, 2) for _ in range(5))
    large = nn.Sequential(*(nn.Linear(9, 9) for _ in range(2)))
    mixed = nn.Sequential(nn.Linear(99, 99), nn.ReLU())
    model = nn.ModuleDict({"small": small, "large": large, "mixed": mixed})
    assert find_blocks(model) == BlockFacts(container="large", kind="Linear", count=2)
    assert find_blocks(nn.Linear(2, 2)) is None
    # A list may hold nothing at a place.
    for parts in ([None, None], [None, nn.Linear(2, 2)]):
        assert find_blocks(nn.ModuleDict({"parts": nn.ModuleList(parts)})) is None


def test_phases_follow_one_another():
    phases = [
        find(name).phase for name in ("precision", "compile", "fsdp", "micro_batch")
    ]
    assert phases == sorted(phases)
    assert find("optimizer_impl").phase is Phase.OPTIMIZER


@dataclasses.dataclass(frozen=True)
class Answer:
    """An output that cannot be changed in place."""

    scores: list[torch.Tensor]


@pytest.mark.parametrize("dtype", ["bf16_autocast", "bf16_params"])
def test_precision_returns_every_tensor_of_an_output_in_fp32(built, dtype):
    class Answering(ToyModel):
        def forward(self, images):
            return Answer([super().forward(images)])

    seen = []

    def loss(output, batch):
        seen.append(output.scores[0].dtype)
        return nn.functional.cross_entropy(output.scores[0], batch[1])

    accelerated = built([("precision", dtype)], model=Answering, loss=loss)
    accelerated.train_step(next(iter(accelerated.loader)))
    assert seen == [torch.float32]


@pytest.mark.slow
def test_precision_returns_an_fp32_output_as_it_is(built):
    class Scaled(ToyModel):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, images):
            # Under autocast the product with an fp32 parameter is fp32.
            return super().forward(images) * self.scale

    seen = []

    def loss(output, batch):
        seen.append(output)
        return nn.functional.cross_entropy(output, batch[1])

    accelerated = built([("precision", "bf16_autocast")], model=Scaled, loss=loss)
    batch = next(iter(accelerated.loader))
    accelerated.train_step(batch)
    assert seen[0].dtype == torch.float32
    # A compiler refuses to look into the attributes of a tensor.
    traced = torch.compile(accelerated.model, backend="eager", fullgraph=True)
    assert traced(batch[0]).dtype == torch.float32


def test_checkpoint_refuses_batch_norm_which_would_count_a_step_twice(context):
    model = dataclasses.replace(context.model, has_batch_norm=True)
    changed = dataclasses.replace(context, model=model)
    assert "statistics twice" in refused("activation_checkpoint", changed).because


def unfreezes(num_parts):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
    parts = [("micro_batch", num_parts)] if num_parts > 1 else []
    done = accelerate(
        model,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data,
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        strategy=["ddp", *parts] if torch.distributed.is_initialized() else parts,
        progress=False,
    )
    for epoch in range(2):
        for batch in done.loader:
            done.train_step(batch)
        model[0].requires_grad_(epoch == 0)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [1, 2])
def test_layer_that_is_unfrozen_later_is_averaged_over_ranks(num_parts):
    alone = unfreezes(num_parts)
    for found in run_ranks(unfreezes, 2, num_parts):
        for one, other in zip(alone, found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
