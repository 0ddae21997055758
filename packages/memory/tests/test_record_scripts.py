"""Training scripts as they are written for a GPU: each is recorded, or refused with a reason."""

import copy
import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim import swa_utils
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from drivetrain_memory import MemoryUseError, record

ROWS, WIDTH, CLASSES = 64, 64, 10
DATA = TensorDataset(torch.randn(ROWS, WIDTH), torch.arange(ROWS) % CLASSES)
WEIGHTS = WIDTH * 128 + 128 + 2 * 128 + 128 * CLASSES + CLASSES


def network():
    return nn.Sequential(
        nn.Linear(WIDTH, 128),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(128, CLASSES),
    )


def loss_of(model, batch):
    images, labels = batch
    return functional.cross_entropy(model(images.cuda()), labels.cuda())


def mixed_precision(model, folder):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type)
    for images, labels in DataLoader(DATA, 16, shuffle=True):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.float16):
            out = model(images.to(device, non_blocking=True))
            loss = functional.cross_entropy(out, labels.to(device, non_blocking=True))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() > 0
    assert out.dtype == torch.float16


def accumulated_gradients(model, folder):
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = 0
    for index, batch in enumerate(DataLoader(DATA, 8)):
        loss = loss_of(model, batch) / 4
        loss.backward()
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    assert steps == 2
    assert f"{loss.item() * 4:.2f}" == "4.00"


def recomputed(model, folder):
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for images, labels in DataLoader(DATA, 16):
        inputs = images.cuda().requires_grad_()
        out = checkpoint_sequential(model, 2, inputs, use_reentrant=False)
        functional.cross_entropy(out, labels.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()


def averaged_weights(model, folder):
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    average = swa_utils.get_ema_multi_avg_fn(0.99)
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=average)
    by_hand = copy.deepcopy(model).eval().requires_grad_(False)
    for batch in DataLoader(DATA, 16):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
        with torch.no_grad():
            pairs = zip(by_hand.parameters(), model.parameters(), strict=True)
            for old, new in pairs:
                old.mul_(0.9).add_(new, alpha=0.1)
    swa_utils.update_bn(DataLoader(DATA, 16), averaged, device="cuda")


def adversaries(model, folder):
    model.cuda()
    drawer = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, WIDTH)).cuda()
    judge = nn.Sequential(model, nn.Linear(CLASSES, 1)).cuda()
    draws = torch.optim.Adam(drawer.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    score = nn.BCEWithLogitsLoss()
    for images, _ in DataLoader(DATA, 16):
        real = images.cuda()
        drawn = drawer(torch.randn(len(real), 16, device=real.device))
        ones, zeros = torch.ones(len(real), 1).cuda(), torch.zeros(len(real), 1).cuda()
        judges.zero_grad()
        (score(judge(real), ones) + score(judge(drawn.detach()), zeros)).backward()
        judges.step()
        draws.zero_grad()
        score(judge(drawn), ones).backward()
        draws.step()


def compiled(model, folder):
    model.cuda()
    forward = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    @torch.compile
    def step(batch):
        loss = loss_of(forward, batch)
        loss.backward()
        return loss

    for batch in DataLoader(DATA, 16):
        step(batch)
        optimizer.step()
        optimizer.zero_grad()


def pinned_batches(model, folder):
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    options = {"pin_memory": True, "num_workers": 1, "drop_last": True}
    for images, labels in DataLoader(DATA, 16, shuffle=True, **options):
        out = model(images.to("cuda", non_blocking=True))
        loss = functional.cross_entropy(out, labels.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    fixed = torch.empty(16, WIDTH, pin_memory=True)
    model(fixed.to("cuda", non_blocking=True))


def scheduled(model, folder):
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warm = [LinearLR(optimizer), ExponentialLR(optimizer, 0.9)]
    schedulers = [
        CosineAnnealingLR(optimizer, 10),
        OneCycleLR(optimizer, 0.1, total_steps=20),
        SequentialLR(optimizer, warm, [2]),
    ]
    plateau = ReduceLROnPlateau(optimizer)
    for batch in DataLoader(DATA, 16):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for scheduler in schedulers:
            scheduler.step()
        plateau.step(loss.item())
    assert optimizer.param_groups[0]["lr"] > 0


def evaluated(model, folder):
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model.train()
        for batch in DataLoader(DATA, 16, shuffle=True):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            if torch.isnan(loss) or not torch.isfinite(loss):
                raise SystemExit
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
        model.eval()
        right, seen, found = 0, 0, []
        with torch.no_grad():
            for images, labels in DataLoader(DATA, 16):
                answer = model(images.cuda()).argmax(1)
                right += (answer == labels.cuda()).sum().item()
                seen += len(labels)
                found.append(answer.cpu())
        assert seen == ROWS
        assert 0 <= right / seen <= 1
        assert torch.cat(found).numpy().shape == (ROWS,)


def saved(model, folder):
    torch.save({"epoch": 0}, folder / "none.pt")
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in DataLoader(DATA, 16):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


def on_all_devices(model, folder):
    parallel = nn.DataParallel(model).cuda()
    optimizer = torch.optim.AdamW(parallel.parameters())
    for batch in DataLoader(DATA, 16):
        loss_of(parallel, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def hooked(model, folder):
    model.cuda()
    norms = []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 2)
        parameter.register_post_accumulate_grad_hook(
            lambda one: norms.append(one.grad.norm())
        )
    model[0].register_forward_hook(lambda *_: None)
    for images, labels in DataLoader(DATA, 16):
        inputs = images.cuda().requires_grad_()
        functional.cross_entropy(model(inputs), labels.cuda()).backward()
    assert len(norms) == 4 * len(list(model.parameters()))


def offloaded(model, folder):
    model.cuda()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = loss_of(model, DATA[:16])
    loss.backward()
    model.cpu()
    assert next(model.parameters()).device.type == "cpu"
    model.cuda()


RECORDED = (
    mixed_precision,
    accumulated_gradients,
    recomputed,
    averaged_weights,
    adversaries,
    compiled,
    pinned_batches,
    scheduled,
    evaluated,
    saved,
    on_all_devices,
    hooked,
    offloaded,
)


def state_of(model):
    """Returns all that a script may change of a model, and must not."""
    tensors = [
        (one, one.detach().clone(), one.device, one.requires_grad, one._backward_hooks)
        for one in (*model.parameters(), *model.buffers())
    ]
    gradients = [(one.grad, one.grad.clone()) for one in model.parameters()]
    modules = [
        (module.training, list(vars(module)), dict(module._forward_hooks))
        for module in model.modules()
    ]
    return tensors, gradients, modules


def require_same(before, now):
    for one, other in zip(before[0], now[0], strict=True):
        assert one[0] is other[0]
        assert torch.equal(one[1], other[1])
        assert one[2:] == other[2:]
    for one, other in zip(before[1], now[1], strict=True):
        assert one[0] is other[0]
        assert torch.equal(one[1], other[1])
    assert before[2] == now[2]


@pytest.mark.parametrize("script", RECORDED, ids=lambda script: script.__name__)
def test_script_is_recorded(script, tmp_path):
    with record("script") as recorder:
        script(network(), tmp_path)
    trace = recorder.trace()
    # At least weights and gradients.
    assert trace.peak_live_bytes > 2 * 4 * WEIGHTS
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", RECORDED, ids=lambda script: script.__name__)
def test_script_leaves_a_model_of_before_as_it_was(script, tmp_path):
    torch.manual_seed(0)
    model = network()
    functional.cross_entropy(model(DATA[:8][0]), DATA[:8][1]).backward()
    before, twin = state_of(model), copy.deepcopy(model)
    seed = torch.get_rng_state()
    with record("before") as recorder:
        script(model, tmp_path)
    assert recorder.trace().peak_live_bytes > 2 * 4 * WEIGHTS
    require_same(before, state_of(model))
    assert torch.equal(torch.get_rng_state(), seed)
    # It trains on as one that no script has seen.
    for one in (model, twin):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        optimizer.zero_grad()
        one(DATA[:8][0]).sum().backward()
        optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def rank_of_one(monkeypatch):
    """Lets a script begin a group of its own, and ends it."""
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
    ):
        monkeypatch.setenv(name, value)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def distributed(backend):
    with warnings.catch_warnings(action="ignore"):
        dist.init_process_group(backend)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    parallel = nn.parallel.DistributedDataParallel(
        network().cuda(local), device_ids=[local]
    )
    for batch in DataLoader(DATA, 16, sampler=DistributedSampler(DATA)):
        loss_of(parallel, batch).backward()


def test_distributed_script_is_refused(rank_of_one):
    says = "DistributedDataParallel cannot be recorded: record the module in it"
    with pytest.raises(MemoryUseError, match=says), record("distributed"):
        distributed("gloo")


@pytest.mark.skipif(dist.is_nccl_available(), reason="this PyTorch has NCCL")
def test_group_that_this_pytorch_lacks_is_refused(rank_of_one):
    with pytest.raises(MemoryUseError, match="NCCL"), record("distributed"):
        distributed("nccl")
