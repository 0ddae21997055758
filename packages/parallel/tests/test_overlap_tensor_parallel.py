"""Overlapped all-gather and reduce-scatter give what the plain ones give."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from drivetrain_core import DistributedError
from drivetrain_parallel.overlap import (
    OverlapError,
    all_gather_matmul,
    matmul_reduce_scatter,
)
from drivetrain_parallel.overlap._exchange import RowExchange
from drivetrain_parallel.overlap._rows import Rows, chunked_rows
from drivetrain_testing import run_ranks

TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 5e-3,
}


def leaf(*shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64) / 3
    return x.to(dtype).requires_grad_()


def gathered(x, rows, dim):
    """What an all-gather of uneven blocks gives, by torch's own collectives."""
    blocks = [None] * dist.get_world_size()
    dist.all_gather_object(blocks, x.detach())
    assert [block.shape[dim] for block in blocks] == list(rows)
    return torch.cat(blocks, dim)


def gather_case(rows, dim, dtype, path, num_chunks, bias, told, save, transposed=False):
    rank = dist.get_rank()
    shape = [3, 5, 5, 4]
    shape[dim] = rows[rank]
    x = leaf(*shape, dtype=dtype, seed=rank)
    given = x
    if transposed:
        given = x.transpose(1, 2).contiguous().transpose(1, 2)
        assert not given.is_contiguous() or not given.numel()
    weight = leaf(6, 4, dtype=dtype, seed=10 + rank)
    add = leaf(6, dtype=dtype, seed=20 + rank) if bias else None
    result = all_gather_matmul(
        given,
        weight,
        bias=add,
        dim=dim,
        rows=rows if told else None,
        num_chunks=num_chunks,
        path=path,
        save_gathered=save,
    )
    grad = leaf(*result.shape, dtype=dtype, seed=30 + rank).detach()
    result.backward(grad)
    whole = gathered(x, rows, dim).double().requires_grad_()
    w = weight.detach().double().requires_grad_()
    b = add.detach().double().requires_grad_() if bias else None
    plain = torch.nn.functional.linear(whole, w, b)
    plain.backward(grad.double())
    summed = whole.grad
    dist.all_reduce(summed)
    start = sum(rows[:rank])
    close = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    torch.testing.assert_close(result.double(), plain, **close)
    assert result.is_contiguous()
    mine = summed.narrow(dim, start, rows[rank])
    torch.testing.assert_close(x.grad.double(), mine, **close)
    torch.testing.assert_close(weight.grad.double(), w.grad, **close)
    if bias:
        torch.testing.assert_close(add.grad.double(), b.grad, **close)


def scatter_case(rows, dim, dtype, path, num_chunks, bias, told, transposed=False):
    rank = dist.get_rank()
    shape = [3, 5, 5, 4]
    shape[dim] = sum(rows)
    x = leaf(*shape, dtype=dtype, seed=rank)
    given = x.transpose(1, 2).contiguous().transpose(1, 2) if transposed else x
    weight = leaf(6, 4, dtype=dtype, seed=10 + rank)
    add = leaf(6, dtype=dtype, seed=20) if bias else None
    result = matmul_reduce_scatter(
        given,
        weight,
        bias=add,
        dim=dim,
        rows=rows if told else None,
        num_chunks=num_chunks,
        path=path,
    )
    start = sum(rows[:rank])
    grad = leaf(*result.shape, dtype=dtype, seed=30 + rank).detach()
    result.backward(grad)
    whole = x.detach().double().requires_grad_()
    w = weight.detach().double().requires_grad_()
    plain = torch.nn.functional.linear(whole, w)
    summed = plain.detach().clone()
    dist.all_reduce(summed)
    if bias:
        summed += add.detach().double()
    plain.backward(gathered(grad, rows, dim).double())
    close = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    mine = summed.narrow(dim, start, rows[rank])
    torch.testing.assert_close(result.double(), mine, **close)
    torch.testing.assert_close(x.grad.double(), whole.grad, **close)
    torch.testing.assert_close(weight.grad.double(), w.grad, **close)
    if bias:
        expected = grad.double().sum((0, 1, 2))
        torch.testing.assert_close(add.grad.double(), expected, **close)


def all_cases(size):
    uneven = [(5, 0, 3)[:size], (0, 0, 0)[:size], (4, 4, 4)[:size], (1, 7, 2)[:size]]
    for dtype in TOLERANCES:
        for path in ("direct", "ring"):
            for rows in uneven:
                for num_chunks in (1, 3):
                    save = num_chunks == 3
                    gather_case(rows, 1, dtype, path, num_chunks, save, not save, save)
                    scatter_case(rows, 1, dtype, path, num_chunks, save, True)
            gather_case(
                (4, 4, 4)[:size], 0, dtype, path, None, True, False, False, True
            )
            scatter_case((4, 4, 4)[:size], 0, dtype, path, None, True, False, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1, marks=pytest.mark.faults),
        2,
        pytest.param(3, marks=pytest.mark.faults),
    ],
)
def test_results_and_gradients_are_those_of_the_plain_path(size):
    run_ranks(all_cases, size, size, timeout_s=120)


def bits(path, dtype):
    """A product in chunks without overlap, and sums in the documented order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = (33, 40, 17, 26)
    rows = Rows(counts=counts, num_chunks=4)
    x = leaf(counts[rank], 24, dtype=dtype, seed=rank).detach()
    weight = leaf(31, 24, dtype=dtype, seed=9).detach()
    whole = gathered(x, counts, 0)
    overlapped = all_gather_matmul(x, weight, rows=counts, num_chunks=4, path=path)
    serial = torch.empty(sum(counts), 31, dtype=dtype)
    for owner in range(size):
        for chunk in rows.chunks(owner):
            torch.mm(whole[chunk], weight.t(), out=serial[chunk])
    assert torch.equal(overlapped, serial)
    everything = [None] * size
    dist.all_gather_object(everything, overlapped)
    assert all(torch.equal(other, overlapped) for other in everything)

    columns = leaf(sum(counts), 24, dtype=dtype, seed=rank).detach()
    overlapped = matmul_reduce_scatter(
        columns, weight, rows=counts, num_chunks=4, path=path
    )
    partial = torch.empty(sum(counts), 31, dtype=dtype)
    for owner in range(size):
        for chunk in rows.chunks(owner):
            partial[chunk] = columns[chunk] @ weight.t()
    terms = [None] * size
    dist.all_gather_object(terms, partial[rows.block(rank)])
    dist.all_gather_object(everything, partial)
    terms = [each[rows.block(rank)] for each in everything]
    if path == "ring":
        terms = [terms[(rank + 1 + step) % size] for step in range(size)]
        total = terms[0].clone()
    else:
        half = dtype in (torch.bfloat16, torch.float16)
        total = terms[0].to(torch.float32 if half else dtype)
    for term in terms[1:]:
        total = total + term
    assert torch.equal(overlapped, total.to(dtype))


def all_bits():
    for path in ("direct", "ring"):
        for dtype in TOLERANCES:
            bits(path, dtype)


def test_bits_are_those_of_the_same_chunks_without_overlap():
    run_ranks(all_bits, 4)


def batched(path):
    """The rounds that a device would run, here on CPUs; and blocks of any sizes."""
    rank = dist.get_rank()
    for counts in ((3, 0, 7), (2, 5, 5), (0, 0, 4)):
        rows = Rows(counts=counts, num_chunks=3)
        blocks = [torch.full((count, 5), float(k)) for k, count in enumerate(counts)]
        found = []
        for in_batches in (False, True):
            exchange = RowExchange(None, rows, path, in_batches=in_batches)
            whole = torch.empty(rows.total, 5)
            for chunk, part in exchange.gather(blocks[rank]):
                whole[chunk] = part
            assert torch.equal(whole, torch.cat(blocks))
            x = torch.arange(5.0 * rows.total).view(-1, 5) ** (rank + 1) / 7
            found.append(exchange.reduce_scatter(lambda at: x[at], x))  # noqa: B023
        assert torch.equal(*found)
        powers = [
            torch.arange(5.0 * rows.total).view(-1, 5) ** (k + 1) for k in range(3)
        ]
        torch.testing.assert_close(found[0], sum(powers)[rows.block(rank)] / 7)


@pytest.mark.parametrize("path", ["direct", "ring"])
def test_rounds_in_batches_give_the_same(path):
    run_ranks(batched, 3, path)


def overlap_happens(path):
    """While a rank works on a chunk, further ones arrive: proven by what is there."""
    rank = dist.get_rank()
    exchange = RowExchange(None, Rows(counts=(4, 4), num_chunks=4), path)
    whole = torch.full((8, 1 << 18), -1.0)
    chunks = exchange.gather(torch.full((4, 1 << 18), float(rank)), whole)
    first, _ = next(chunks)
    assert first.start == 4 * rank
    # Both ranks stop here, without taking another chunk, until further ones have come.
    theirs = whole[4 * (1 - rank) :][:3]
    deadline = time.monotonic() + 60
    while not bool((theirs == 1 - rank).all()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return len(list(chunks))


@pytest.mark.parametrize("path", ["direct", "ring"])
def test_chunks_arrive_while_the_caller_does_something_else(path):
    assert run_ranks(overlap_happens, 2, path) == [7, 7]


def refusals():
    rank = dist.get_rank()
    found = {}

    def refused(name, error, call):
        with pytest.raises(error) as caught:
            call()
        found[name] = str(caught.value)

    x, weight = torch.ones(4, 2), torch.ones(3, 2)
    refused(
        "columns",
        DistributedError,
        lambda: all_gather_matmul(torch.ones(4, 2 + rank), torch.ones(3, 2 + rank)),
    )
    refused(
        "dtype",
        DistributedError,
        lambda: all_gather_matmul(
            x.to((torch.float64, torch.float32)[rank]),
            weight.to((torch.float64, torch.float32)[rank]),
        ),
    )
    refused(
        "rows",
        DistributedError,
        lambda: matmul_reduce_scatter(torch.ones(4 + 2 * rank, 2), weight),
    )
    refused(
        "chunks",
        DistributedError,
        lambda: all_gather_matmul(x, weight, num_chunks=1 + rank),
    )
    refused(
        "path",
        DistributedError,
        lambda: all_gather_matmul(x, weight, path=("direct", "ring")[rank]),
    )
    refused(
        "indivisible",
        OverlapError,
        lambda: matmul_reduce_scatter(torch.ones(5, 2), weight),
    )
    refused("told", OverlapError, lambda: all_gather_matmul(x, weight, rows=[3, 3]))
    refused("too few", OverlapError, lambda: all_gather_matmul(x, weight, rows=[4]))
    refused("sum", OverlapError, lambda: matmul_reduce_scatter(x, weight, rows=[1, 2]))
    refused(
        "negative", OverlapError, lambda: matmul_reduce_scatter(x, weight, rows=[5, -1])
    )
    refused(
        "no chunk",
        OverlapError,
        lambda: all_gather_matmul(x, weight, num_chunks=0, rows=[4, 4]),
    )
    refused("weight", OverlapError, lambda: all_gather_matmul(x, weight.t()))
    refused(
        "bias", OverlapError, lambda: all_gather_matmul(x, weight, bias=torch.ones(2))
    )
    refused("mixed", OverlapError, lambda: all_gather_matmul(x, weight.double()))
    refused(
        "whole numbers",
        OverlapError,
        lambda: all_gather_matmul(x.long(), weight.long()),
    )
    refused("last dim", OverlapError, lambda: all_gather_matmul(x, weight, dim=1))
    refused("no path", OverlapError, lambda: all_gather_matmul(x, weight, path="tree"))
    groups = [dist.new_group([0]), dist.new_group([1])]
    refused(
        "group",
        DistributedError,
        lambda: all_gather_matmul(x, weight, groups[1 - rank]),
    )
    # After all of it the group still works.
    assert all_gather_matmul(x, weight).shape == (8, 3)
    return found


def test_what_does_not_fit_is_a_clear_error():
    zero, one = run_ranks(refusals, 2)
    assert zero["columns"] == one["columns"]
    assert "equal columns" in zero["columns"]
    assert "[2, 3]" in zero["columns"]
    assert "torch.float64" in one["dtype"]
    assert "equal rows" in one["rows"]
    assert "[1, 2]" in zero["chunks"]
    assert "equal path" in zero["path"]
    assert "5 rows cannot be divided equally between the 2" in zero["indivisible"]
    assert "has 3, and its x has 4" in zero["told"]
    assert "each of the 2 ranks" in zero["too few"]
    assert "3 in all, and x has 4" in zero["sum"]
    assert "0 rows or more" in zero["negative"]
    assert "at least 1, got 0" in zero["no chunk"]
    assert "(4, 2) and (2, 3)" in zero["weight"]
    assert "got (2,)" in zero["bias"]
    assert "one type" in zero["mixed"]
    assert "torch.int64" in zero["whole numbers"]
    assert "other than the last" in zero["last dim"]
    assert "direct, ring" in zero["no path"]
    assert "rank 0 is not in the group" in zero["group"]


def test_without_a_process_group_there_is_an_error():
    with pytest.raises(DistributedError, match="init_process_group"):
        all_gather_matmul(torch.ones(2, 2), torch.ones(2, 2))


def takes_part(path, outcome):
    """Rank 1 leaves in the middle, by death or without a word; returns what a rank sees."""
    rank = int(os.environ["RANK"])
    if rank == 1 and outcome == "dies":
        # `run_ranks` ends all ranks with the first: here, only a child of one dies.
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return "dead"
    # Gloo keeps the time-out of its start, which takes seconds on a busy machine.
    timeout = timedelta(seconds=30 if outcome == "dies" else 8)
    dist.init_process_group("gloo", timeout=timeout)
    exchange = RowExchange(None, Rows(counts=(2, 2, 2), num_chunks=2), path, what="try")
    everyone = exchange.gather(torch.ones(2, 1 << 16))
    assert len(list(everyone)) == 6
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        if outcome == "dies":
            os._exit(3)
        store.wait(["rank 0 is done", "rank 2 is done"], timedelta(seconds=50))
        return "stuck"
    with pytest.raises(DistributedError) as caught:
        list(exchange.gather(torch.ones(2, 1 << 16)))
    store.set(f"rank {rank} is done", "")
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("direct", "dies"),
        ("direct", "is stuck"),
        ("ring", "dies"),
        pytest.param("ring", "is stuck", marks=pytest.mark.faults),
    ],
)
def test_a_lost_rank_is_an_error_of_the_others(path, outcome):
    found = run_ranks(takes_part, 3, path, outcome, process_group=False)
    assert found[1] in ("dead", "stuck")
    for rank in (0, 2):
        assert "try: no exchange with rank " in found[rank]
    # On the ring a rank only talks to its neighbours; here one of them is always lost.
    assert any("with rank 1 " in found[rank] for rank in (0, 2))


def test_sharding_rule_is_that_of_torch():
    for total in range(20):
        for size in range(1, 6):
            parts = torch.arange(total).chunk(size) if total else ()
            expected = [len(part) for part in parts]
            expected += [0] * (size - len(expected))
            assert list(chunked_rows(total, size)) == expected


def autocast():
    rank = dist.get_rank()
    x = leaf(4, 8, dtype=torch.float32, seed=rank)
    weight = leaf(5, 8, dtype=torch.float32, seed=7)
    with torch.autocast("cpu", torch.bfloat16):
        result = all_gather_matmul(x, weight)
    assert result.dtype == torch.bfloat16
    result.sum().backward()
    assert x.grad.dtype == weight.grad.dtype == torch.float32


def test_autocast_has_the_types_of_a_linear_layer():
    run_ranks(autocast, 2)


def autocast_leaves_float64():
    x, weight = torch.ones(4, 3).double(), torch.ones(5, 3).double()
    with torch.autocast("cpu", torch.bfloat16):
        expected = nn.functional.linear(x, weight).dtype
        assert all_gather_matmul(x, weight).dtype == expected == torch.float64
        assert matmul_reduce_scatter(x, weight).dtype == expected


def test_autocast_leaves_float64_alone():
    run_ranks(autocast_leaves_float64, 2)


def backward_under_autocast(operation):
    found = []
    for enabled in (False, True):
        x = leaf(4, 3, dtype=torch.float32, seed=dist.get_rank())
        weight = leaf(5, 3, dtype=torch.float32, seed=7)
        loss = operation(x, weight, num_chunks=2).square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss.backward()
        found.append((x.grad, weight.grad))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("operation", [all_gather_matmul, matmul_reduce_scatter])
def test_a_backward_under_autocast_keeps_the_types_of_its_forward(operation):
    run_ranks(backward_under_autocast, 2, operation)


def disagreements():
    first = dist.get_rank() == 0
    # Equal bytes, and unlike matrices.
    shape = (4, 2, 3) if first else (4, 3, 2)
    with pytest.raises(DistributedError, match=r"equal row_vectors.*\[2, 3\]"):
        all_gather_matmul(torch.ones(shape), torch.ones(5, shape[-1]))
    weight = torch.ones(5, 3, requires_grad=True)
    x = torch.ones(4, 3, requires_grad=first)
    with pytest.raises(DistributedError, match=r"requires_grad.*'all-gather'"):
        all_gather_matmul(x, weight)
    with pytest.raises(DistributedError, match=r"requires_grad.*'no message'"):
        matmul_reduce_scatter(x, weight.detach())
    with torch.no_grad():
        assert all_gather_matmul(x, weight).shape == (8, 5)


def test_ranks_whose_tensors_differ_are_an_error_and_no_hang():
    run_ranks(disagreements, 2)


def bad_arguments():
    x, weight = torch.ones(4, 3), torch.ones(5, 3)
    mesh = init_device_mesh("cpu", (1,))
    for operation in (all_gather_matmul, matmul_reduce_scatter):
        for chunks in (0, -1, 2.5):
            with pytest.raises(OverlapError, match=r"num_chunks must be an int"):
                operation(x, weight, num_chunks=chunks)
        with pytest.raises(OverlapError, match=r"rows must be an int.*4\.0"):
            operation(x, weight, rows=(4.0,))
        with pytest.raises(OverlapError, match="takes the local tensors"):
            operation(distribute_tensor(x, mesh, [Replicate()]), weight)
    with pytest.raises(OverlapError, match="each of the 1 ranks"):
        matmul_reduce_scatter(x[:0], weight, rows=())


def test_counts_and_kinds_that_do_not_fit_are_errors():
    run_ranks(bad_arguments, 1)


def compiled(x, weight, other):
    return matmul_reduce_scatter(torch.relu(all_gather_matmul(x, weight)), other)


def compiles():
    rank, function = dist.get_rank(), torch.compile(compiled, backend="aot_eager")
    for seed in range(2):
        found = []
        for call in (compiled, function):
            x = leaf(4, 3, dtype=torch.float32, seed=10 * seed + rank)
            weight = leaf(5, 3, dtype=torch.float32, seed=7)
            other = leaf(3, 5, dtype=torch.float32, seed=8)
            call(x, weight, other).square().sum().backward()
            found.append((x.grad, weight.grad, other.grad))
        assert all(map(torch.equal, *found))


@pytest.mark.faults
def test_compiled_functions_may_call_it():
    run_ranks(compiles, 2)
