"""One global order of samples, in whole batches and in parts, whoever reads it."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from drivetrain.quickstart._batches import draw_order, open_batches
from drivetrain_core import ProgramError, accelerate

SIZE, BATCH = 22, 4


def drawn():
    samples = torch.arange(SIZE, dtype=torch.float32)[:, None]
    return DataLoader(TensorDataset(samples), batch_size=BATCH, shuffle=True)


def workers():
    loader = drawn()
    return DataLoader(loader.dataset, batch_size=BATCH, shuffle=True, num_workers=1)


def listed():
    return list(torch.arange(SIZE, dtype=torch.float32)[:, None].split(BATCH))


def program(data):
    return accelerate(
        torch.nn.Linear(1, 1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data,
        lambda output, batch: output.mean(),
        strategy=[],
    )


def values(batch):
    return (batch[0] if isinstance(batch, list | tuple) else batch).flatten().tolist()


@pytest.mark.parametrize("make", [drawn, workers, listed])
def test_parts_are_the_rows_of_whole_batches(make, tmp_path):
    num_steps, order = 12, tmp_path / "order"
    torch.manual_seed(3)
    accelerated = program(make())
    draw_order(accelerated, num_steps, order)
    whole = open_batches(accelerated, order).whole()
    batches = [values(next(whole)) for _ in range(num_steps)]
    assert all(len(batch) == BATCH for batch in batches)
    # The last, smaller batch of each epoch is left out.
    per_epoch = SIZE // BATCH
    first = {value for batch in batches[:per_epoch] for value in batch}
    assert len(first) == per_epoch * BATCH
    parts = open_batches(accelerated, order)
    for step, batch in enumerate(batches):
        places = range(step * BATCH, (step + 1) * BATCH)
        assert values(parts.part(places[:3])) == batch[:3]
        assert values(parts.part(places[3:])) == batch[3:]
    # A step may be made again, and a worker begin in the middle.
    assert values(parts.part(range(4, 8))) == batches[1]
    late = open_batches(accelerated, order)
    assert values(late.part(range(32, 36))) == batches[8]


def test_order_is_the_same_in_every_process(tmp_path):
    texts = []
    for number in range(2):
        torch.manual_seed(5)
        draw_order(program(drawn()), 12, tmp_path / str(number))
        texts.append((tmp_path / str(number)).read_text())
    assert texts[0] == texts[1]
    assert texts[0] != "null"


def test_data_without_a_whole_batch_is_refused(tmp_path):
    accelerated = program(drawn())
    short = torch.utils.data.BatchSampler(range(3), BATCH, drop_last=False)
    accelerated.loader = DataLoader(drawn().dataset, batch_sampler=short)
    with pytest.raises(ProgramError, match="no whole batch of 4 samples"):
        draw_order(accelerated, 2, tmp_path / "order")
