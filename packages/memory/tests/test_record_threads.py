"""Threads, data loaders and files of a program that is recorded."""

import gc
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

from drivetrain_memory import MemoryUseError, record

KIB = 2**10
BATCH = torch.ones(64, 8)


@pytest.fixture(scope="module", autouse=True)
def loaders_are_gone():
    """A loader ends its workers when nobody has it any more."""
    yield
    gc.collect()


def run(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_thread_that_makes_batches_of_the_host_is_let_be():
    batches = queue.Queue()

    def work():
        for row in range(4):
            batches.put(BATCH[row : row + 4] + torch.ones(4, 8))

    with record("prefetch") as recorder:
        model = nn.Linear(8, 8)
        run(work)
        while not batches.empty():
            model(batches.get().cuda(non_blocking=True)).sum().backward()
    assert recorder.trace().peak_live_bytes > 2 * 4 * 8 * 8


def on_the_device():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: BATCH.cuda())


def with_what_is_recorded():
    batch = torch.ones(4, 4)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: batch @ batch)


def with_a_model():
    model = nn.Linear(4, 4)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model, torch.ones(2, 4))


@pytest.mark.parametrize(
    "program", [on_the_device, with_what_is_recorded, with_a_model]
)
def test_thread_that_computes_on_the_device_is_refused_though_it_says_nothing(program):
    says = "ThreadPool.* computes on the device .* compute in that one"
    with pytest.raises(MemoryUseError, match=says), record("threads"):
        program()
    # The next one is recorded.
    with record("next"):
        torch.ones(4)


def test_functions_of_other_threads_are_left_alone(tmp_path):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    weight = torch.ones(3, requires_grad=True)
    kinds = []

    def work():
        out = Double.apply(weight)
        kinds.append((type(out), out.device.type))
        torch.save(out.detach(), tmp_path / "out.pt")

    with record("other"):
        run(work)
    assert kinds == [(torch.Tensor, "cpu")]
    assert torch.load(tmp_path / "out.pt").tolist() == [2, 2, 2]


class Made(Dataset):
    def __init__(self, rows):
        self.rows = torch.zeros(rows, KIB // 4)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + 1


DATA = {
    "own": lambda: Made(64),
    "tensors": lambda: TensorDataset(torch.zeros(64, KIB // 4)),
    "part": lambda: random_split(Made(65), [64, 1])[0],
    "list": lambda: [torch.zeros(KIB // 4) for _ in range(64)],
}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
@pytest.mark.parametrize("shuffle", [False, True])
def test_data_that_is_made_inside_and_moved_batch_by_batch_lies_on_the_host(
    make, shuffle
):
    with record("data") as recorder:
        data = make()
        moved = [
            (batch[0] if isinstance(batch, list) else batch).cuda()
            for batch in DataLoader(data, 16, shuffle=shuffle)
        ]
    # Its four batches, and nothing of the data that they are made of.
    assert recorder.trace().peak_live_bytes == 64 * KIB
    assert len(moved) == 4


@pytest.mark.parametrize("device", [None, "cuda"])
def test_data_that_is_made_on_the_device_stays_there(device):
    with record("data") as recorder:
        data = TensorDataset(torch.zeros(64, KIB // 4, device=device))
        for (batch,) in DataLoader(data, 16):
            assert batch.device.type == "cuda"
            if device:
                batch.cuda()
    # Two batches in the loop, and what they are made of.
    expected = 2 * 16 if device is None else 64 + 2 * 16
    assert recorder.trace().peak_live_bytes == expected * KIB


def test_workers_cannot_send_what_a_program_made():
    says = "make the data set before, or load with num_workers=0"
    with pytest.raises(MemoryUseError, match=says), record("workers"):
        list(DataLoader(Made(8), 4, num_workers=1))


class Draws(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), float(index))


def test_workers_of_a_data_set_that_holds_no_tensors_load():
    with record("workers"):
        loader = DataLoader(Draws(), 4, num_workers=2)
        assert [batch[:, 0].tolist() for batch in loader] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
        ]


def test_checkpoints_that_were_not_written_are_not_loaded(tmp_path):
    says = "was not written: a program that is recorded saves nothing"
    with record("checkpoint"):
        model = nn.Linear(3, 3)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        state = model.state_dict()
        run(lambda: torch.save(state, tmp_path / "thread.pt"))
        for name in ("model.pt", "thread.pt"):
            with pytest.raises(MemoryUseError, match=says):
                torch.load(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoint_is_not_written_over(tmp_path):
    before = nn.Linear(3, 3)
    dcp.save({"model": before.state_dict()}, checkpoint_id=tmp_path)
    kept = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with record("checkpoint"):
        for model in (before, nn.Linear(3, 3)):
            dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path)
    assert kept == {file: file.read_bytes() for file in tmp_path.iterdir()}


def test_checkpoint_of_before_is_loaded_to_where_it_is_asked(tmp_path):
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "model.pt")
    with record("load"):
        for device in ("cpu", "cuda"):
            state = torch.load(tmp_path / "model.pt", map_location=device)
            assert {value.device.type for value in state.values()} == {device}
        nn.Linear(3, 3).load_state_dict(state)
