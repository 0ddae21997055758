"""What programs do while they are recorded, and what of it is undone or refused."""

import copy
import gc
import random
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from drivetrain_memory import MemoryUseError, record, scalable
from drivetrain_memory.trace import Operation

KIB, MIB = 2**10, 2**20
LOADED = TensorDataset(torch.arange(32 * 8, dtype=torch.float32).view(32, 8))


def peak(program):
    with record("program") as recorder:
        recorder.step()
        kept = program()
    del kept
    return recorder.trace().peak_live_bytes


def live(program):
    with record("program") as recorder:
        kept = program()
        gc.collect()
        trace = recorder.trace()
    del kept
    return int(trace.live_bytes()[-1])


def averaged_copy(model):
    return copy.deepcopy(model).cuda()


def tied_model():
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 256, False))
    model[1].weight = model[0].weight
    return model


def test_copy_of_a_model_is_moved():
    def program():
        model = nn.Linear(512, 512, bias=False)
        averaged = averaged_copy(model)
        return model.to("cuda"), averaged

    assert live(program) == 2 * MIB


def test_copy_of_a_model_from_before_is_made():
    model = nn.BatchNorm1d(8)

    def program():
        model(torch.ones(2, 8)).sum().backward()
        averaged = copy.deepcopy(model).cuda()
        assert averaged.running_mean.device.type == "cuda"
        assert averaged.weight is not model.weight
        return averaged(torch.ones(2, 8))

    assert peak(program) > 0
    assert model.num_batches_tracked == 0


@pytest.mark.parametrize("before", [True, False])
def test_weights_stay_tied_and_their_optimizers_when_a_model_is_moved(before):
    def made():
        model = tied_model()
        return model, torch.optim.SGD(model.parameters(), momentum=0.9)

    model, optimizer = made() if before else (None, None)

    def program():
        ours, theirs = (model, optimizer) if before else made()
        weight = ours.cuda()[0].weight
        assert weight is ours[1].weight
        ours(torch.ones(8, 256)).sum().backward()
        theirs.step()
        assert theirs.state[weight]["momentum_buffer"].device.type == "cuda"
        return ours, theirs

    # A weight, its gradient, what is added to that, and its momentum: 256 KiB each.
    assert MIB <= peak(program) < 1.1 * MIB
    if before:
        assert model[0].weight is model[1].weight
        assert not optimizer.state


def test_converted_weights_take_the_memory_of_what_they_are_now():
    model = nn.Linear(512, 512, bias=False)

    def program():
        model.cuda()
        return model.to(torch.bfloat16)

    assert live(program) == MIB // 2


def test_data_of_a_tensor_moves_with_it():
    with record("data"):
        weight = nn.Parameter(torch.ones(3, device="cpu"))
        weight.data = weight.data.cuda()
        assert weight.device.type == "cuda"
        weight.data = LOADED.tensors[0]
        assert weight.shape == LOADED.tensors[0].shape


def test_what_a_program_changes_is_given_back():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.seen, self.table = 0, [], None

        def forward(self, x):
            self.calls += 1
            self.seen.append(x.mean())
            if self.table is None:
                self.table = torch.ones(8, device=x.device)
            self.new = x
            return x + self.table

    model = nn.Sequential(nn.Linear(8, 8), Counts(), nn.Dropout())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(LOADED, 8, shuffle=True, generator=generator)
    state = generator.get_state(), torch.get_rng_state(), random.getstate()
    kept = (
        [dict(vars(x)) for x in (*model.modules(), optimizer, scheduler, scaler)],
        scheduler.state_dict(),
    )
    with record("changes"):
        torch.manual_seed(7)
        random.random()
        torch.set_default_dtype(torch.float64)
        hook = model[0].register_forward_hook(lambda *_: None)
        list(loader)
        model(torch.ones(2, 8, dtype=torch.float32)).sum().backward()
        optimizer.step()
        scheduler.step()
        model.eval()
        assert model[1].calls == 1
    hook.remove()
    assert model.training
    assert model[2].training
    assert (model[1].calls, model[1].seen, model[1].table) == (0, [], None)
    assert not hasattr(model[1], "new")
    assert optimizer.param_groups[0]["lr"] == 0.1
    now = [dict(vars(x)) for x in (*model.modules(), optimizer, scheduler, scaler)]
    for one, other in zip(now, kept[0], strict=True):
        assert one.keys() == other.keys()
        assert all(one[name] is other[name] for name in one)
    assert scheduler.state_dict() == kept[1]
    assert torch.equal(generator.get_state(), state[0])
    assert torch.equal(torch.get_rng_state(), state[1])
    assert random.getstate() == state[2]
    assert torch.get_default_dtype() == torch.float32


def test_numbers_that_a_program_gives_are_followed():
    lengths = torch.tensor([3, 7])
    with record("numbers"):
        widths = torch.arange(5) * 2.5 + 3
        assert torch.log2(widths / 3).round().int().tolist() == [0, 1, 1, 2, 2]
        assert torch.linspace(0, 1, 3).tolist() == [0, 0.5, 1]
        assert torch.arange(lengths.max()).shape == (7,)
        assert lengths.tolist() == [3, 7]
        assert [10, 20, 30][torch.tensor(2)] == 30
        counts = torch.zeros(3)
        row = counts[1:]
        row += 2
        assert counts.tolist() == [0, 2, 2]
        # What is drawn, or follows of large tensors, is not known.
        counts += torch.rand(3)
        assert row.tolist() == [1, 1]
        assert torch.ones(MIB).sum().item() == 1
    assert lengths.tolist() == [3, 7]


def test_answers_of_a_program_are_followed():
    large = torch.ones(MIB)
    with record("answers"):
        # What is not known counts as 1.
        guess = torch.rand(4) > torch.tensor([0, 1, 2, 0])
        assert guess.tolist() == [True, False, False, True]
        assert guess.sum().item() == 1
        found = torch.rand(MIB) > 0
        assert found.all()
        assert not found[1:].logical_not().any()
        assert (found & large.bool()).any()
        found.zero_()
        found[3] = torch.rand(()) > 2
        assert torch.isfinite(torch.rand(2, MIB)).view(-1)[5]
        assert not torch.empty(MIB, dtype=torch.bool).any()


def test_whole_numbers_that_are_drawn_are_drawn():
    with record("drawn") as recorder:
        torch.manual_seed(3)
        lengths = torch.randint(100, 200, (4,))
        rows = [torch.empty(length, 256) for length in lengths.tolist()]
        order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
        assert sorted(order.tolist()) == list(range(5000))
    assert all(100 <= len(row) < 200 for row in rows)
    assert recorder.trace().peak_live_bytes >= KIB * sum(map(len, rows))


def counts_of(scores):
    chosen = nn.functional.one_hot(scores.argmax(-1), 4)
    return chosen.sum(0)


SIZES = {
    "list": lambda counts: torch.ones(16, 8).split(counts.tolist()),
    "slice": lambda counts: torch.ones(16, 8)[: counts[1].item()],
    "numbers": lambda counts: [torch.ones(int(count)) for count in counts],
}


@pytest.mark.parametrize("program", SIZES.values(), ids=SIZES)
def test_shares_of_experts_are_refused(program):
    says = (
        "a whole number that is not known cannot be recorded: leave it out, or fix it"
    )
    with pytest.raises(MemoryUseError, match=says), record("experts"):
        program(counts_of(torch.rand(16, 4)))


def test_grouped_product_is_recorded():
    experts = nn.Parameter(torch.ones(4, 64, 32, dtype=torch.bfloat16))

    def program():
        x = torch.ones(16, 64, dtype=torch.bfloat16, requires_grad=True)
        ends = counts_of(torch.rand(16, 4)).cumsum(0, dtype=torch.int32)
        nn.functional.grouped_mm(x, experts, offs=ends).square().sum().backward()
        assert experts.grad.shape == (4, 64, 32)
        return x.grad

    # The experts and their gradients.
    assert peak(program) > 2 * 2 * 4 * 64 * 32
    assert experts.grad is None


@pytest.mark.parametrize("before", [True, False])
def test_lazy_module_is_refused_until_its_sizes_are_known(before):
    lazy = nn.LazyLinear(4) if before else None
    with pytest.raises(MemoryUseError, match=r"a lazy module .* sizes"), record("lazy"):
        (lazy or nn.LazyBatchNorm1d())(torch.ones(2, 8))
    if before:
        lazy(torch.ones(2, 8))
        assert peak(lambda: lazy(torch.ones(2, 8))) > 4 * 4 * 8


def test_optimizer_that_divides_by_what_its_steps_have_become():
    model = nn.Linear(64, 64)

    def program():
        optimizer = torch.optim.NAdam(model.parameters())
        for _ in range(2):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        return optimizer

    assert peak(program) > 4 * 4 * 64 * 64


def test_what_was_there_before_lies_on_the_device_before_it_is_used():
    model, batch = nn.Linear(16, 16), torch.ones(2, 16)

    def program():
        device = next(model.parameters()).device
        assert device.type == "cuda"
        assert batch.is_cuda
        return model(
            torch.ones(2, 16).to(device) + torch.arange(16, device=batch.device)
        )

    assert peak(program) > 0
    assert model.weight.device.type == batch.device.type == "cpu"


def test_inference_before_training():
    model, batch = nn.Linear(64, 64), torch.ones(4, 64)

    def evaluate():
        with torch.inference_mode():
            loss = nn.functional.cross_entropy(model(batch), torch.arange(4))
            assert loss.item() == 1.0
        return loss

    def program():
        evaluate()
        return model(batch).sum().backward()

    assert peak(program) > 2 * 4 * 64 * 64
    with torch.no_grad():
        # The probabilities of which the loss is made are seen.
        assert peak(evaluate) >= 3 * 4 * 4 * 64


def test_functions_of_functions_are_recorded():
    model = nn.Linear(16, 16)

    def weights_of(model):
        return {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, row):
        return torch.func.functional_call(model, weights, (row,)).sum()

    def program():
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        return each(weights_of(model.cuda()), torch.ones(4, 16))["weight"].shape

    with record("functions"):
        assert program() == (4, 16, 16)


def test_streams_events_and_guards_of_a_program():
    with record("streams") as recorder:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.cuda.device(0):
            gathered = torch.ones(256)
        gathered.record_stream(torch.cuda.current_stream())
        ended.record(torch.cuda.current_stream())
        torch.cuda.synchronize()
        assert began.elapsed_time(ended) > 0
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.get_device_properties(0).total_memory > 0
        assert torch.cuda.mem_get_info()[0] > 0
    events = recorder.trace().events
    assert events["operation"].tolist()[:2] == [
        Operation.ALLOCATE,
        Operation.RECORD_STREAM,
    ]
    assert events["stream"][0] > events["stream"][1] == 0


def test_data_parallel_on_one_device():
    model = nn.DataParallel(nn.Linear(8, 8))

    def program():
        return (
            nn.DataParallel(nn.Linear(8, 8).cuda())(torch.ones(2, 8)).sum().backward()
        )

    assert peak(program) > 2 * 4 * 8 * 8
    with record("before"):
        assert model.cuda()(torch.ones(2, 8)).device.type == "cuda"


def test_default_device_of_a_program():
    with record("default"):
        torch.set_default_device("cpu")
        assert torch.ones(2).device.type == "cpu"
        torch.set_default_device("cuda")
        assert torch.ones(2).device.type == "cuda"
    assert torch.ones(2).device.type == "cpu"


def test_no_checkpoint_is_written_over(tmp_path):
    file = tmp_path / "model.pt"
    torch.save({"step": 3}, file)
    with record("save"):
        torch.save(nn.Linear(3, 3).state_dict(), file)
    assert torch.load(file) == {"step": 3}


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda: torch.ones(3, 3).to_sparse(), "_to_sparse"),
        (
            lambda: nn.Embedding(4, 4, sparse=True)(torch.arange(3)).sum().backward(),
            "sparse_coo",
        ),
        (
            lambda: nn.CTCLoss()(
                torch.ones(9, 2, 5),
                torch.ones(2, 3, dtype=torch.long),
                torch.full((2,), 9),
                torch.full((2,), 3),
            ),
            "ctc_loss",
        ),
        (lambda: torch.Generator("cuda"), "device that is there"),
        (lambda: torch.cuda.CUDAGraph(), "run its steps without"),
        (
            lambda: list(
                DataLoader(LOADED, sampler=WeightedRandomSampler(torch.ones(32), 8))
            ),
            "needs values",
        ),
    ],
    ids=["sparse", "sparse gradient", "ctc", "generator", "graph", "sampler"],
)
def test_what_cannot_be_recorded_is_refused(program, says):
    with pytest.raises(MemoryUseError, match=says), record("refused"):
        program()


def test_other_threads_modules_are_left_alone():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    weight, kinds = model.weight, []

    def work():
        model.to(torch.float64)
        model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        optimizer.step()
        kinds.extend([type(model.weight), model.weight.device.type])

    with record("other"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert kinds == [nn.Parameter, "cpu"]
    assert model.weight is weight


def test_recordings_number_their_streams_alike():
    def recorded(batch):
        with record("streams") as recorder:
            torch.cuda.Event(enable_timing=True)
            with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
                made = torch.empty(batch, 4096, device="cuda")
                assert torch.cuda.current_stream().number == 1
                made.record_stream(torch.cuda.default_stream())
            assert torch.cuda.current_stream().number == 0
        return recorder.trace()

    trace = scalable(recorded(2), 2, recorded(3), 3)
    assert trace.at_batch(8).peak_live_bytes == 8 * 4096 * 4
    # A GPU's streams come out of a pool, one after the other, and again.
    with record("many"):
        assert len({torch.cuda.Stream().number for _ in range(256)}) == 32


@pytest.mark.parametrize("change", ["cuda", "half", "bfloat16"])
def test_model_from_before_is_moved_with_its_gradients(change):
    model = nn.Linear(8, 8)
    model(torch.ones(1, 8)).sum().backward()
    gradient, before = model.weight.grad, model.weight.grad.clone()
    with record("moved"):
        getattr(model, change)()
        assert model.weight.grad.dtype == model.weight.dtype
        assert model.weight.grad.device.type == "cuda"
    assert model.weight.grad is gradient
    assert torch.equal(gradient, before)
    assert gradient.dtype == torch.float32
