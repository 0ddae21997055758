"""Training on the device: bit for bit what the CPU computes, with and without delays."""

import warnings

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")
testing = pytest.importorskip("drivetrain_simulated_accelerator.testing")

pytestmark = pytest.mark.simulated_accelerator

NUM_STEPS = 3
VOCABULARY = 32
WIDTH = 16


def make_model():
    torch.manual_seed(0)
    blocks = [
        torch.nn.TransformerEncoderLayer(
            WIDTH, 2, 32, dropout=0.0, batch_first=True, norm_first=True
        )
        for _ in range(2)
    ]
    return torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH),
        *blocks,
        torch.nn.Linear(WIDTH, VOCABULARY),
    )


def wrap_ddp(model, device):
    return torch.nn.parallel.DistributedDataParallel(model)


def wrap_fsdp(model, device, *, bf16=False, sharded=None, offload=False):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    world_size = torch.distributed.get_world_size()
    if sharded is None:
        mesh = init_device_mesh(device, (world_size,))
    else:
        shape = (world_size // sharded, sharded)
        mesh = init_device_mesh(device, shape, mesh_dim_names=("replicas", "shards"))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32
    )
    options = {
        "mesh": mesh,
        "mp_policy": policy,
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
    }
    for block in model[1:3]:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def wrap_fsdp_bf16(model, device):
    return wrap_fsdp(model, device, bf16=True)


def wrap_hsdp(model, device):
    return wrap_fsdp(model, device, sharded=2)


def wrap_fsdp_offloaded(model, device):
    return wrap_fsdp(model, device, offload=device == "sim")


def wrap_nothing(model, device):
    return model


# How a model is wrapped; whether autocast and a GradScaler are used.
CASES = {
    "ddp": (wrap_ddp, False, False),
    "fsdp": (wrap_fsdp, False, False),
    "fsdp bf16": (wrap_fsdp_bf16, False, False),
    "fsdp offloaded": (wrap_fsdp_offloaded, False, False),
    "autocast": (wrap_nothing, True, False),
    "scaler": (wrap_ddp, True, True),
    "hsdp": (wrap_hsdp, False, False),
}


def train(rank, device, case):
    """Returns the losses, the norms of gradients and a sum over the parameters."""
    wrap, autocast, scales = CASES[case]
    model = wrap(make_model().to(device), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, enabled=scales)
    found = []
    for step in range(NUM_STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        ids = torch.randint(0, VOCABULARY, (2, 9), generator=generator)
        x = ids[:, :-1].to(device, non_blocking=True)
        y = ids[:, 1:].to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            logits = model(x).flatten(0, 1).float()
            loss = torch.nn.functional.cross_entropy(logits, y.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        found += [loss.item(), norm.item()]
    for parameter in model.parameters():
        local = getattr(parameter, "to_local", lambda p=parameter: p)()
        found.append(local.detach().double().sum().item())
    return found


def compare(rank, cases):
    """Trains on the CPU, on the device, and on the device with delays."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    warnings.simplefilter("ignore")
    found = {}
    with sdpa_kernel(SDPBackend.MATH):
        for case in cases:
            on_host = train(rank, "cpu", case)
            on_device = train(rank, "sim", case)
            with control.delays(op_us=100, copy_us=2000, collective_us=2000):
                slowly = train(rank, "sim", case)
            found[case] = (on_host, on_device, slowly)
    return found


@pytest.fixture(scope="module")
def trained():
    """What each case computed, by case and rank."""
    of_two = testing.run_ranks(compare, 2, [c for c in CASES if c != "hsdp"])
    of_four = testing.run_ranks(compare, 4, ["hsdp"])
    for ended in (*of_two, *of_four):
        assert ended.error == ""
        assert ended.exit_code == 0
    return {
        case: [ended.result[case] for ended in (of_four if case == "hsdp" else of_two)]
        for case in CASES
    }


@pytest.mark.parametrize("case", CASES)
def test_training_equals_the_cpus_bit_for_bit(trained, case):
    for on_host, on_device, _ in trained[case]:
        assert on_device == on_host


@pytest.mark.parametrize("case", CASES)
def test_training_with_delays_equals_the_cpus_bit_for_bit(trained, case):
    for on_host, _, slowly in trained[case]:
        assert slowly == on_host
