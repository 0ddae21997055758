"""One rank that measures an overlap; rank 0 prints medians of seconds as JSON.

Its argument is a JSON list of cases, each with its options. Rounds alternate between what is
compared; a time is that of the slowest rank.
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from drivetrain_parallel.overlap import all_gather_matmul, matmul_reduce_scatter
from drivetrain_parallel.overlap._exchange import RowExchange
from drivetrain_parallel.overlap._rows import Rows, default_num_chunks

_NUM_ROUNDS = 7
_NUM_WARM_ROUNDS = 2


def in_turns(runs, num_rounds=_NUM_ROUNDS):
    """Returns the median seconds of each run, of the slowest rank in each round."""
    seconds = {name: [] for name in runs}
    for turn in range(num_rounds + _NUM_WARM_ROUNDS):
        for name, run in runs.items():
            dist.barrier()
            start = time.perf_counter()
            run()
            mine = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            if turn >= _NUM_WARM_ROUNDS:
                seconds[name].append(mine.item())
    return {name: statistics.median(each) for name, each in seconds.items()}


# --- Rows: 2 MiB on each rank, whose exchange takes 0.13 s at 400 Mbit/s. ---

_ROWS_PER_RANK, _COLUMNS, _FEATURES = 512, 1024, 64
_ROW_S = 0.13 / (4 * _ROWS_PER_RANK)


def multiply(chunk):
    """What stands for a product: a sleep in proportion to the rows."""
    time.sleep(_ROW_S * (chunk.stop - chunk.start))


def all_chunks(rows):
    return [chunk for rank in range(len(rows.counts)) for chunk in rows.chunks(rank)]


def row_exchange(path):
    size = dist.get_world_size()
    num_chunks = default_num_chunks(_ROWS_PER_RANK * _COLUMNS * 4)
    rows = Rows(counts=(_ROWS_PER_RANK,) * size, num_chunks=num_chunks)
    return RowExchange(None, rows, path), rows


def gather(path):
    exchange, rows = row_exchange(path)
    torch.manual_seed(dist.get_rank())
    block = torch.randn(_ROWS_PER_RANK, _COLUMNS)

    def communicate():
        for _ in exchange.gather(block):
            pass

    def compute():
        for chunk in all_chunks(rows):
            multiply(chunk)

    def serial():
        communicate()
        compute()

    def overlapped():
        for chunk, _ in exchange.gather(block):
            multiply(chunk)

    weight = torch.randn(_FEATURES, _COLUMNS)
    found = all_gather_matmul(block, weight, path=path)
    blocks = [torch.empty_like(block) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, block)
    whole = torch.cat(blocks)
    expected = [whole[chunk] @ weight.t() for chunk in all_chunks(rows)]
    times = in_turns(
        {
            "communication": communicate,
            "computation": compute,
            "serial": serial,
            "overlapped": overlapped,
        }
    )
    is_exact = torch.equal(found, torch.cat(expected))
    return {**times, "num_chunks": len(all_chunks(rows)), "is_exact": is_exact}


def scatter(path):
    exchange, rows = row_exchange(path)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    product = torch.randn(rows.total, _COLUMNS)

    def communicate():
        exchange.reduce_scatter(lambda chunk: product[chunk], product)

    def compute():
        for chunk in all_chunks(rows):
            multiply(chunk)

    def serial():
        compute()
        communicate()

    def multiplied(chunk):
        multiply(chunk)
        return product[chunk]

    def overlapped():
        exchange.reduce_scatter(multiplied, product)

    # The sum, in the order that the path is documented to have.
    x, weight = torch.randn(rows.total, 32), torch.randn(_FEATURES, 32)
    options = {"path": path, "num_chunks": rows.num_chunks}
    found = matmul_reduce_scatter(x, weight, **options)
    mine = torch.cat([x[chunk] @ weight.t() for chunk in all_chunks(rows)])
    terms = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(terms, mine)
    order = range(rank + 1, rank + 1 + size) if path == "ring" else range(size)
    total = sum(terms[each % size][rows.block(rank)] for each in order)
    times = in_turns(
        {
            "communication": communicate,
            "computation": compute,
            "serial": serial,
            "overlapped": overlapped,
        }
    )
    is_exact = torch.equal(found, total)
    return {**times, "num_chunks": len(all_chunks(rows)), "is_exact": is_exact}


# --- FSDP2: 8 MiB in the root and its first block, against a loader of 0.13 s. ---

_WIDTH, _LOAD_S = 1024, 0.13


class SlowLoader:
    """Yields batches, each after the time that it takes to load."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(dist.get_rank())
        while True:
            time.sleep(_LOAD_S)
            yield torch.randn(2, _WIDTH, generator=generator)


def sharded():
    from torch.distributed.fsdp import fully_shard  # Other cases start without it.

    torch.manual_seed(0)
    linear = [nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(2)]
    model = nn.Sequential(linear[0], nn.Sequential(linear[1]))
    fully_shard(model[1])
    return fully_shard(model)


def fsdp():
    from drivetrain_parallel.overlap import prefetch_first_unshard

    def trainer(wrap):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = iter(wrap(model, SlowLoader()))

        def step():
            model(next(batches)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, batches, step

    plain, _, serial = trainer(lambda _, loader: loader)
    early, batches, overlapped = trainer(prefetch_first_unshard)
    third = sharded()
    third(torch.ones(2, _WIDTH)).sum().backward()

    def communicate():
        modules = (third, third[1])
        for handle in [module.unshard(async_op=True) for module in modules]:
            handle.wait()
        for module in modules:
            module.reshard()

    times = in_turns(
        {
            "communication": communicate,
            "computation": lambda: time.sleep(_LOAD_S),
            "serial": serial,
            "overlapped": overlapped,
        }
    )
    batches.close()
    pairs = zip(plain.parameters(), early.parameters(), strict=True)
    is_exact = all(torch.equal(a.to_local(), b.to_local()) for a, b in pairs)
    return {**times, "is_exact": is_exact}


# --- A pipeline: 1 MiB a message, 21 ms at 400 Mbit/s, and 30 ms a computation. ---

_NUM_MICROBATCHES, _ACTIVATION, _COMPUTE_S = 8, (64, 4096), 0.03


class Slept(torch.autograd.Function):
    """What stands for a layer's work, in the forward and in the backward."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(_COMPUTE_S)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(_COMPUTE_S)
        return grad


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(_ACTIVATION[1]))

    def forward(self, x):
        return Slept.apply(x * self.scale)


def pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from drivetrain_parallel.overlap import DecoupledSchedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(_NUM_MICROBATCHES * _ACTIVATION[0], _ACTIVATION[1])
    layers = {}

    def runner(name, make, **options):
        torch.manual_seed(rank)
        layer = layers[name] = Layer()
        stage = PipelineStage(layer, rank, size, torch.device("cpu"))
        loss = nn.functional.mse_loss
        schedule = make(stage, _NUM_MICROBATCHES, loss_fn=loss, **options)
        inputs = [x] if rank == 0 else []
        target = {"target": x} if rank == size - 1 else {}

        def run():
            layer.zero_grad()
            schedule.step(*inputs, **target, return_outputs=False)

        return run

    layer = Layer()
    message = torch.ones(_ACTIVATION, requires_grad=True)

    def forward():
        layer(message)

    outputs = iter([layer(message) for _ in range(5 + _NUM_WARM_ROUNDS)])

    def backward():
        next(outputs).sum().backward()

    times = in_turns(
        {
            "forward": forward,
            "backward": backward,
            "serial": runner("serial", Schedule1F1B),
            "plain": runner("plain", DecoupledSchedule1F1B),
            "eager": runner("eager", DecoupledSchedule1F1B, eager=True),
        },
        num_rounds=5,
    )
    grads = [each.scale.grad for each in layers.values()]
    return {
        **times,
        "num_stages": size,
        "num_microbatches": _NUM_MICROBATCHES,
        "message_bytes": message.nbytes,
        "is_exact": all(torch.equal(grads[0], grad) for grad in grads),
    }


_CASES = {"gather": gather, "scatter": scatter, "fsdp": fsdp, "pipeline": pipeline}


def main():
    dist.init_process_group("gloo")
    all_found = []
    for case, *options in json.loads(sys.argv[1]):
        found = _CASES[case](*options)
        exact = torch.tensor([float(found["is_exact"])])
        dist.all_reduce(exact, op=dist.ReduceOp.MIN)
        all_found.append({**found, "is_exact": bool(exact.item())})
    if dist.get_rank() == 0:
        print(json.dumps(all_found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
