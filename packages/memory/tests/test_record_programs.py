"""Programs for a GPU are recorded as they are, and what they had before is left alone."""

import copy
import gc
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_memory import MemoryUseError, record

MIB = 2**20
LOADED = TensorDataset(torch.arange(32 * 256, dtype=torch.float32).view(32, 256))


def peak(program, **options):
    with record("program") as recorder:
        recorder.step()
        kept = program(**options)
    del kept
    return recorder.trace().peak_live_bytes


def live(program):
    with record("program") as recorder:
        kept = program()
        del kept
        gc.collect()
        kept = program()
        trace = recorder.trace()
    del kept
    return int(trace.live_bytes()[-1])


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


def steps_of(model, batches, device=None):
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:
        loss = model(batch.to(device) if device else batch).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def to_the_accelerator():
    return nn.Linear(1024, 1024).to(torch.accelerator.current_accelerator())


def to_what_is_available():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return nn.Linear(1024, 1024).to(device)


MADE = {
    "no device": lambda: nn.Linear(1024, 1024),
    "device=": lambda: nn.Linear(1024, 1024, device="cuda"),
    "cuda()": lambda: nn.Linear(1024, 1024).cuda(),
    "to(text)": lambda: nn.Linear(1024, 1024).to("cuda:0"),
    "to(device)": lambda: nn.Linear(1024, 1024).to(torch.device("cuda"), torch.float),
    "accelerator": to_the_accelerator,
    "is_available": to_what_is_available,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_weights_lie_on_the_device_however_they_got_there(make):
    def program():
        model = make()
        return model, model(torch.empty(8, 1024, device="cuda")).sum().backward()

    # Weights and gradients, once.
    assert 8 * MIB <= peak(program) < 8 * MIB + 128 * 1024


def test_what_stays_in_the_hosts_memory_is_not_recorded():
    def named():
        images = torch.zeros(1000, 1024, device="cpu")
        return images, [images[i : i + 10].cuda() for i in range(0, 100, 10)]

    def moved():
        images = torch.zeros(1000, 1024)
        return images, [images[i : i + 10].to("cuda") for i in range(0, 100, 10)]

    assert live(named) == live(moved) == 10 * 10 * 4096


def test_host_and_device_do_not_mix_as_on_a_gpu():
    with record("mixed"), pytest.raises(RuntimeError, match="device"):
        torch.ones(3, device="cuda") + torch.ones(3, device="cpu")


def test_dropout_keeps_a_byte_for_each_element():
    def program(p):
        x = torch.empty(1024, 1024, requires_grad=True)
        return nn.functional.dropout(x, p)

    assert peak(program, p=0.5) - peak(program, p=0.0) == 4 * MIB + MIB


def test_autocast_takes_the_gpus_rules():
    def program(enabled):
        x = torch.empty(1024, 1024, requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
            y = nn.functional.linear(x, x)
            assert y.dtype == (torch.bfloat16 if enabled else torch.float32)
            # Float32 on a GPU, and not on a CPU.
            return nn.functional.softmax(y, -1).dtype, nn.functional.layer_norm(
                y, (1024,)
            ).dtype

    with record("autocast"):
        assert program(True) == (torch.float32, torch.float32)
    assert peak(program, enabled=True) > 4 * MIB


def test_scaler_scales_and_steps():
    def program():
        model = nn.Linear(512, 512)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.empty(4, 512)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return model, optimizer

    # Weights, gradients, and a momentum that only a step makes.
    assert live(program) > 3 * 512 * 512 * 4


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_blocks_keep_their_inputs(reentrant):
    blocks = [
        nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout()) for _ in range(16)
    ]

    def program(recomputes):
        x = torch.empty(4096, 64, device="cuda", requires_grad=True)
        for block in blocks:
            x = (
                checkpoint(block, x, use_reentrant=reentrant)
                if recomputes
                else block(x)
            )
        x.sum().backward()

    assert peak(program, recomputes=True) < 0.7 * peak(program, recomputes=False)


def test_numbers_and_questions_go_on():
    with record("numbers"):
        loss = nn.Linear(4, 1)(torch.ones(2, 4)).mean().detach()
        assert loss.item() == float(loss) == 1.0
        assert f"{loss:.2f} {loss.item():.1f}" == "1.00 1.0"
        assert loss.detach().cpu().numpy() == 1.0
        assert torch.ones(2, 2).tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert math.isfinite(loss.item())
        assert torch.isfinite(loss).all()
        assert not torch.isnan(loss).any()
        assert not bool((loss > 100).item())
        assert torch.arange(3).max().item() == 2


def test_what_depends_on_values_is_refused_by_name():
    with (
        record("values"),
        pytest.raises(MemoryUseError, match=r"aten\.nonzero.*outside"),
    ):
        torch.ones(4).nonzero()
    with record("values"), pytest.raises(MemoryUseError, match="depends on values"):
        torch.ones(4)[torch.ones(4) > 0]


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 1}, {"pin_memory": True}],
    ids=["plain", "worker", "pinned"],
)
@pytest.mark.parametrize("device", [None, "cuda"])
def test_loaders_batches_are_taken_as_they_are(options, device):
    def program():
        loader = DataLoader(LOADED, 8, shuffle=True, **options)
        model = nn.Linear(256, 256)
        with torch.no_grad():
            model.weight.zero_()
        seen = sorted(int(row[0]) for (batch,) in loader for row in batch)
        assert seen == list(range(0, 32 * 256, 256))
        return steps_of(model, [batch for (batch,) in loader], device)

    # Weights and two moments; gradients are gone.
    assert live(program) >= 3 * 256 * 256 * 4


def test_loader_of_tensors_that_were_made_inside():
    def program():
        loader = DataLoader(TensorDataset(torch.zeros(64, 256)), 16)
        return [batch for (batch,) in loader]

    assert live(program) == 64 * 256 * 4


def test_program_that_was_there_before_is_left_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    batch = torch.randn(8, 64)
    model(batch).sum().backward()
    optimizer.step()
    averaged = copy.deepcopy(model)
    states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    gradients = [p.grad.clone() for p in model.parameters()]
    kept = [*model.parameters(), *model.buffers()]
    seed = torch.get_rng_state()
    with record("before") as recorder:
        for _ in range(2):
            recorder.step()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            assert model[0].weight.grad is not None
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            with torch.no_grad():
                for old, new in zip(
                    averaged.parameters(), model.parameters(), strict=True
                ):
                    old.lerp_(new, 0.1)
    assert all(
        a is b
        for a, b in zip(kept, [*model.parameters(), *model.buffers()], strict=True)
    )
    now = (model.state_dict(), optimizer.state_dict())
    torch.testing.assert_close(now, states, rtol=0, atol=0)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert torch.equal(torch.get_rng_state(), seed)
    # Two weights, gradient, two moments, and the batch.
    weights = sum(p.numel() for p in model.parameters())
    assert recorder.trace().peak_live_bytes > 5 * 4 * weights
    # It trains on.
    optimizer.step()
    assert not torch.equal(model[0].weight, states[0]["0.weight"])


def test_model_that_is_converted_inside_is_what_it_was_before():
    model = nn.Linear(8, 8)
    weight, before = model.weight, model.weight.clone()

    def program():
        return model.to("cuda", torch.bfloat16)(
            torch.empty(2, 8, dtype=torch.bfloat16)
        ).dtype

    with record("converted"):
        assert program() == torch.bfloat16
        model.requires_grad_(False)
        model.eval()
    assert model.weight is weight
    assert model.weight.requires_grad
    assert torch.equal(weight, before)
    assert weight.dtype == torch.float32
    assert weight.device.type == "cpu"


def test_functions_of_the_users_own_meet_weights_from_before():
    weight = nn.Parameter(torch.randn(64))

    def program():
        x = torch.empty(8, 64, requires_grad=True)
        Twice.apply(x, weight).sum().backward()
        return weight.grad.shape

    with record("function"):
        assert program() == (64,)
    assert weight.grad is None


def test_storages_that_are_resized_come_and_go():
    def program():
        whole = torch.empty(MIB)
        whole.untyped_storage().resize_(0)
        other = torch.empty(16)
        other.resize_(2 * MIB)
        whole.untyped_storage().resize_(4 * MIB // 2)
        return whole, other

    assert live(program) == 8 * MIB + 2 * MIB


def test_tensor_without_memory_that_gets_some_is_seen():
    def program():
        whole = torch.empty(0)
        whole.untyped_storage().resize_(MIB)
        return whole

    assert live(program) == MIB


def test_defaults_of_a_gpus_optimizers_are_recorded():
    def program(**options):
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        model(torch.empty(4, 512)).sum().backward()
        optimizer.step()
        return model, optimizer

    assert peak(program) == peak(program, foreach=True)
    assert peak(program, foreach=False) < 0.9 * peak(program)
    assert peak(program, fused=True) < 0.9 * peak(program)


def test_compiled_program_is_recorded_as_it_is_written():
    def program(compiled):
        model = nn.Linear(64, 64)
        forward = torch.compile(model) if compiled else model
        return steps_of(forward, [torch.empty(4, 64)])

    assert peak(program, compiled=True) == peak(program, compiled=False)


def test_recurrent_network_is_recorded():
    def program():
        model = nn.LSTM(64, 64, batch_first=True)
        model(torch.empty(4, 16, 64))[0].sum().backward()
        return model

    assert peak(program) > 2 * 4 * 8 * 64 * 64


def test_nothing_of_it_is_left_in_torch():
    resize, step = torch.UntypedStorage.resize_, torch.optim.Optimizer.step
    available, apply = torch.cuda.is_available(), torch.autograd.Function.apply.__func__
    with pytest.raises(ZeroDivisionError), record("broken"):
        raise ZeroDivisionError
    assert torch.UntypedStorage.resize_ is resize
    assert torch.optim.Optimizer.step is step
    assert torch.cuda.is_available() == available
    assert torch.autograd.Function.apply.__func__ is apply
    assert "resize_" not in vars(torch.UntypedStorage)
    weight = torch.ones(3, requires_grad=True)
    (2 * weight).sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]
    assert torch.ones(2).device.type == "cpu"
    assert (torch.accelerator.current_accelerator() is None) == (not available)
