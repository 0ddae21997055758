"""Rows of torch's test_c10d_gloo: a process group's own methods, and the reducer."""

from datetime import timedelta
from itertools import groupby

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch_rows import CLOSE, RowsOf, error_of

row = RowsOf("test_c10d_gloo.py")
NUM_STRESSED = 100


def new_group():
    return dist.new_group()


def options(kind, **fields):
    made = getattr(dist, f"{kind}Options")()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def value_of(work):
    """Returns what the future of a work holds, once it has ended."""
    future = work.get_future()
    future.wait()
    return future.value()


def refused_by(method, kind, cases):
    """Returns the errors of calls with options."""
    return [
        error_of(lambda a=arguments, f=fields: method(*a, options(kind, **f)))
        for *arguments, fields in cases
    ]


ONE, DOUBLE, TWO = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)


@row("test_empty_tensors", "a broadcast of nothing")
def _():
    return value_of(new_group().broadcast([torch.zeros(0)]))


@row("test_multi_device_constructor", "futures of several all-reduces")
def _():
    group = new_group()
    return [value_of(group.allreduce(torch.ones(i + 1))) for i in range(4)]


def root(rank=None, tensor=0):
    return {"rootRank": dist.get_rank() if rank is None else rank, "rootTensor": tensor}


@row("test_broadcast_checks", "wrong roots, kinds and sizes")
def _():
    cases = [
        ([ONE], root(-1)),
        ([ONE], root(3)),
        ([ONE], root(tensor=-1)),
        ([ONE], root(tensor=1)),
        ([], root()),
        ([ONE, DOUBLE], root()),
        ([ONE, TWO], root()),
    ]
    return refused_by(new_group().broadcast, "Broadcast", cases)


@row("test_broadcast_basics", "each root, one and two tensors")
def _():
    group, rank, found = new_group(), dist.get_rank(), []
    for source in range(3):
        opts = options("Broadcast", **root(source))
        found.append(value_of(group.broadcast([torch.tensor([rank])], opts)))
        for place in range(2):
            pair = [torch.tensor([rank * 2.0]), torch.tensor([rank * 2.0 + 1])]
            opts = options("Broadcast", **root(source, place))
            found.append(value_of(group.broadcast(pair, opts)))
    return found, value_of(group.broadcast(torch.tensor([rank + 1.0]), root=0))


@row("test_allreduce_checks", "nothing, and tensors that differ")
def _():
    cases = [([], {}), ([ONE, DOUBLE], {}), ([ONE, TWO], {})]
    return refused_by(new_group().allreduce, "Allreduce", cases)


INTEGERS = ("BAND", "BOR", "BXOR")


def by_all_operations(call):
    """Returns what a call makes of each operation of Gloo's."""
    rank, found = dist.get_rank(), {}
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        found[name] = call(getattr(ReduceOp, name), torch.tensor([rank + 1.0]))
    for name in INTEGERS:
        for i in range(4):
            tensor = torch.tensor([rank | (1 << i)], dtype=torch.int32)
            found[f"{name} {i}"] = call(getattr(ReduceOp, name), tensor)
    return found


@row("test_allreduce_basics", "each operation, fp16, the short form")
def _():
    group, rank = new_group(), dist.get_rank()

    def reduced(operation, tensor):
        opts = options("Allreduce", reduceOp=operation)
        return value_of(group.allreduce([tensor], opts))

    halves = (torch.arange(8) * (rank + 1)).to(torch.float16)
    short = value_of(group.allreduce(torch.tensor([rank + 1.0])))
    return by_all_operations(reduced), value_of(group.allreduce([halves])), short


@row("test_allreduce_basics: several tensors", "two tensors of a rank")
def _():
    group, rank = new_group(), dist.get_rank()
    found = {}
    for name in ("SUM", "PRODUCT", "MIN", "MAX"):
        pair = [torch.tensor([2.0 * rank + 1]), torch.tensor([2.0 * rank + 2])]
        opts = options("Allreduce", reduceOp=getattr(ReduceOp, name))
        found[name] = value_of(group.allreduce(pair, opts))
    return found


def stress(begin):
    """Begins many, then waits for each; `begin` returns works in its order."""
    works = [work.get_future() for i in range(NUM_STRESSED) for work in begin(i)]
    found = []
    for future in works:
        future.wait()
        found.append(future.value())
    return found


@row("test_allreduce_stress", "a hundred at once")
def _():
    group, rank = new_group(), dist.get_rank()
    return stress(lambda i: [group.allreduce(torch.tensor([i + rank]))])


@row("test_broadcast_stress", "a hundred, each rank in turn")
def _():
    group, rank = new_group(), dist.get_rank()
    return stress(lambda i: [group.broadcast(torch.tensor([3 * i + rank]), root=i % 3)])


@row("test_allreduce_coalesced_checks", "kinds and layouts that differ")
def _():
    sparse = torch.sparse_coo_tensor([[0]], [1], size=(1,))
    cases = [([], {}), ([ONE, DOUBLE], {}), ([ONE, sparse], {})]
    cases.append(([sparse, sparse.clone()], {}))
    group = new_group()
    return refused_by(group.allreduce_coalesced, "AllreduceCoalesced", cases)


@row("test_allreduce_coalesced_basics", "each operation")
def _():
    group, rank, found = new_group(), dist.get_rank(), {}
    for name in ("SUM", "PRODUCT", "MIN", "MAX"):
        pair = [torch.tensor([rank + 1.0]), torch.tensor([(rank + 2.0) ** 2])]
        opts = options("AllreduceCoalesced", reduceOp=getattr(ReduceOp, name))
        found[name] = value_of(group.allreduce_coalesced(pair, opts))
    return found


@row("test_allreduce_coalesced_stress", "a hundred at once")
def _():
    group, rank = new_group(), dist.get_rank()
    return stress(
        lambda i: [group.allreduce_coalesced([torch.tensor([i + rank]) for _ in "ab"])]
    )


@row("test_allreduce_coalesced_async", "futures of torch.distributed")
def _():
    lists = [[torch.tensor([i + dist.get_rank()]) for _ in "ab"] for i in range(2)]
    futures = [dist.all_reduce_coalesced(one, async_op=True) for one in lists]
    torch.futures.wait_all(futures)
    return [future.wait() for future in futures]


def sparse_of(places, values, size):
    return torch.sparse_coo_tensor([places], values, size=(size,))


@row("test_sparse_allreduce_checks", "layouts, sizes, operations")
def _():
    group = new_group()
    small, large = sparse_of([0], [1.0], 2), sparse_of([0], [1.0], 4)
    names = ("PRODUCT", "MIN", "MAX")
    cases = [([], {}), ([ONE, small], {}), ([small, large], {})]
    cases += [([large], {"reduceOp": getattr(ReduceOp, name)}) for name in names]
    return refused_by(group.allreduce, "Allreduce", cases)


@row("test_sparse_allreduce_basics", "one and two tensors")
def _():
    group, rank = new_group(), dist.get_rank()
    one = [sparse_of([rank], [1.0], 3)]
    two = [sparse_of([rank, 3], [1.0, rank + 1.0], 6) for _ in "ab"]
    return value_of(group.allreduce(one)), value_of(group.allreduce(two)), one, two


@row("test_allgather_into_tensor_coalesced", "several into several")
def _():
    given = [torch.full((n, 5), dist.get_rank() + 1.0) for n in (5, 10)]
    taken = [torch.empty(n * 3, 5) for n in (5, 10)]
    dist.group.WORLD.allgather_into_tensor_coalesced(taken, given).wait()
    return taken


@row("test_reduce_scatter", "parts of different sizes")
def _():
    rank = dist.get_rank()
    taken = torch.empty(rank)
    given = [torch.arange(float(i)) + rank for i in range(3)]
    dist.reduce_scatter(taken, given, async_op=True).wait()
    return taken


@row("test_reduce_scatter_tensor", "one tensor")
def _():
    taken = torch.empty(4, 4)
    given = torch.arange(48.0).reshape(12, 4) + dist.get_rank()
    dist.reduce_scatter_tensor(taken, given, async_op=True).wait()
    return taken


@row("test_reduce_scatter_tensor_coalesced", "several tensors")
def _():
    taken = [torch.empty(n, n) for n in (2, 4)]
    given = [torch.arange(3.0 * n * n).reshape(3 * n, n) for n in (2, 4)]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(taken, given).wait()
    return taken


@row("test_scatter_checks", "roots, lists, kinds and sizes")
def _():
    mine, next_one = (
        {"rootRank": dist.get_rank()},
        {"rootRank": (dist.get_rank() + 1) % 3},
    )
    cases = [
        ([ONE], [], {"rootRank": -1}),
        ([ONE], [], {"rootRank": 3}),
        ([], [], {"rootRank": 0}),
        ([ONE, ONE], [], {"rootRank": 0}),
        ([ONE], [], mine),
        ([ONE], [[ONE] * 3, [ONE] * 3], mine),
        ([ONE], [[ONE] * 2], mine),
        ([ONE], [[ONE] * 4], mine),
        ([ONE], [[DOUBLE] * 3], mine),
        ([ONE], [[TWO] * 3], mine),
        ([ONE], [[ONE] * 3], next_one),
    ]
    return refused_by(new_group().scatter, "Scatter", cases)


def scatters(group, i):
    """Each rank scatters once; returns the works."""
    rank = dist.get_rank()
    works = []
    for source in range(3):
        given = [[torch.tensor([i + source + j]) for j in range(3)]]
        opts = options("Scatter", rootRank=source)
        place = [torch.tensor([-1])]
        works.append(group.scatter(place, given if rank == source else [], opts))
    return works


@row("test_scatter_basics", "each rank in turn")
def _():
    return [value_of(work) for work in scatters(new_group(), 0)]


@row("test_scatter_stress", "three hundred at once")
def _():
    group = new_group()
    return stress(lambda i: scatters(group, i))


@row("test_set_gloo_pg_timeout", "the default time-out")
def _():
    group = new_group()
    group.allreduce(torch.ones(10)).wait()
    backend = group._get_backend(torch.device("cpu"))
    group.set_timeout(timedelta(seconds=23))
    return backend.options._timeout.total_seconds()


@row("test_gather_checks", "roots, lists, kinds and sizes")
def _():
    mine, next_one = (
        {"rootRank": dist.get_rank()},
        {"rootRank": (dist.get_rank() + 1) % 3},
    )
    cases = [
        ([], [ONE], {"rootRank": -1}),
        ([], [ONE], {"rootRank": 3}),
        ([], [], {"rootRank": 0}),
        ([], [ONE, ONE], {"rootRank": 0}),
        ([], [ONE], mine),
        ([[ONE] * 3, [ONE] * 3], [ONE], mine),
        ([[ONE] * 2], [ONE], mine),
        ([[ONE] * 4], [ONE], mine),
        ([[DOUBLE] * 3], [ONE], mine),
        ([[TWO] * 3], [ONE], mine),
        ([[ONE] * 3], [ONE], next_one),
    ]
    return refused_by(new_group().gather, "Gather", cases)


def same(tensor):
    return tensor


def column(tensor):
    """The same values, which do not lie side by side."""
    return tensor.expand(2, 2).contiguous()[:, 0]


def gathers(group, i, change):
    rank, works = dist.get_rank(), []
    for target in range(3):
        places = [[change(torch.tensor([-1])) for _ in range(3)]]
        opts = options("Gather", rootRank=target)
        given = [change(torch.tensor([i + rank]))]
        works.append(group.gather(places if rank == target else [], given, opts))
    return works


def gathered(change):
    group = new_group()
    works = gathers(group, 0, change)
    values = [value_of(work) for work in works]
    return values[dist.get_rank()]


row.add("test_gather_basics", "at each rank", lambda: gathered(same))
row.add("test_gather_noncontiguous_input", "columns", lambda: gathered(column))


@row("test_gather_stress", "three hundred at once")
def _():
    group = new_group()
    found = stress(lambda i: gathers(group, i, same))
    return found[dist.get_rank() :: 3]


@row("test_allgather_checks", "lists, kinds and sizes")
def _():
    group = new_group()
    twice = [[ONE, ONE] * 3, [ONE, ONE] * 3]
    cases = [
        ([], []),
        ([], [ONE]),
        ([[ONE] * 3, [ONE] * 3], [ONE]),
        ([[ONE] * 2], [ONE]),
        ([[ONE] * 4], [ONE]),
        (twice, [ONE, DOUBLE]),
        (twice, [ONE, TWO]),
        ([[ONE, DOUBLE, ONE]], [ONE]),
        ([[ONE, TWO, ONE]], [ONE]),
    ]
    return [error_of(group.allgather, *case) for case in cases]


def all_gathered(change):
    group, rank, found = new_group(), dist.get_rank(), []
    for n in (1, 2, 3):
        given = [change(torch.tensor([n * rank + i])) for i in range(n)]
        places = [[change(torch.tensor([-1])) for _ in range(n * 3)] for _ in range(n)]
        found.append(value_of(group.allgather(places, given)))
    return found


row.add("test_allgather_basics", "one to three tensors", lambda: all_gathered(same))
row.add("test_allgather_noncontiguous_input", "columns", lambda: all_gathered(column))


@row("test_allgather_inference_mode", "tensors of inference")
def _():
    with torch.inference_mode():
        found = all_gathered(same)
        tensor = torch.ones(2, 3).t()
        dist.all_reduce(tensor)
        return [one.clone() for list_ in found for one in _flat(list_)], tensor.clone()


def _flat(value):
    return (
        [value]
        if isinstance(value, torch.Tensor)
        else [o for v in value for o in _flat(v)]
    )


@row("test_allgather_stress", "a hundred at once")
def _():
    group, rank = new_group(), dist.get_rank()
    kept = []

    def begin(i):
        kept.append(
            ([[torch.tensor([-1]) for _ in range(3)]], [torch.tensor([i + rank])])
        )
        return [group.allgather(*kept[-1])]

    return stress(begin)


@row("test_allgather_coalesced_checks", "sizes, kinds, lists")
def _():
    given = [torch.zeros(1)]

    def places(first):
        return [[first], *([torch.zeros(1)] for _ in range(2))]

    return [
        error_of(dist.all_gather_coalesced, places(torch.zeros(0)), given),
        error_of(dist.all_gather_coalesced, places(DOUBLE), given),
        error_of(
            dist.all_gather_coalesced, [[torch.zeros(1)] for _ in range(4)], given
        ),
        error_of(dist.all_gather_coalesced, [torch.zeros(0)], given),
    ]


@row("test_allgather_coalesced_async", "futures of torch.distributed")
def _():
    given = [[torch.tensor([i + dist.get_rank()]) for _ in "ab"] for i in range(2)]
    places = [[[torch.zeros_like(x) for x in one] for _ in range(3)] for one in given]
    futures = [
        dist.all_gather_coalesced(place, one, async_op=True)
        for place, one in zip(places, given, strict=True)
    ]
    torch.futures.wait_all(futures)
    return places


@row("test_reduce_checks", "roots and lists")
def _():
    cases = [
        ([ONE], root(-1)),
        ([ONE], root(3)),
        ([ONE], root(tensor=1)),
        ([ONE, ONE], root()),
    ]
    return refused_by(new_group().reduce, "Reduce", cases)


def reduced_at(group, target, operation, tensor):
    opts = options("Reduce", rootRank=target, reduceOp=operation)
    value = value_of(group.reduce([tensor], opts))
    return value if dist.get_rank() == target else None


@row("test_reduce_basics", "each operation at each rank")
def _():
    group = new_group()
    return [
        by_all_operations(lambda op, t, r=r: reduced_at(group, r, op, t.clone()))
        for r in range(3)
    ]


@row("test_reduce_stress", "three hundred at once")
def _():
    group, rank = new_group(), dist.get_rank()
    found = stress(
        lambda i: [
            group.reduce([torch.tensor([i + rank])], options("Reduce", rootRank=r))
            for r in range(3)
        ]
    )
    return found[rank::3]


@row("test_send_recv_all_to_all", "works of messages")
def _():
    group, rank = new_group(), dist.get_rank()
    others = [other for other in range(3) if other != rank]
    places = [torch.tensor([-1]) for _ in range(3)]
    works = [group.send([torch.tensor([rank])], other, 0) for other in others]
    works += [group.recv([places[other]], other, 0) for other in others]
    for work in works:
        work.wait()
    return places, [work.is_completed() for work in works]


@row("test_barrier_implies_wait", "a barrier after sixteen")
def _():
    group = new_group()
    tensors = [torch.full((100, 100), float(i)) for i in range(16)]
    works = [group.allreduce(tensor) for tensor in tensors]
    group.barrier().get_future().wait()
    return tensors, len(works)


@row("test_broadcast_coalesced_gloo_cpu", "buffers of 256 bytes")
def _():
    group, found = new_group(), []
    for source in range(3):
        kinds = torch.float32, torch.float64, torch.float32
        tensors = [
            part for kind in kinds for part in torch.arange(60).to(kind).chunk(5)
        ]
        if dist.get_rank() != source:
            tensors = [torch.zeros_like(tensor) for tensor in tensors]
        dist._broadcast_coalesced(group, tensors, buffer_size=256, src=source)
        found.append(tensors)
    return found


# Torch's reducer, without DDP.


class Reduced(torch.nn.Module):
    def __init__(self, is_mixed=True):
        super().__init__()
        self.first = torch.nn.Linear(2, 10, bias=False)
        self.second = torch.nn.Linear(10, 4, bias=False)
        self.third = torch.nn.Linear(4, 4, bias=False)
        if is_mixed:
            self.first.double()

    def forward(self, x, use_third=True):
        x = self.first(x).relu().float()
        x = self.second(x).relu()
        return self.third(x) if use_third else x


def reducer_of(model, buckets=None, **rest):
    parameters = list(model.parameters())
    if buckets is None:
        places = groupby(range(len(parameters)), key=lambda i: parameters[i].dtype)
        buckets = [list(indices) for _, indices in places]
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES] * len(buckets)
    return dist.Reducer(parameters, buckets, limits, new_group(), **rest)


@row("test_single_dtype_single_bucket", "a reducer is made")
def _():
    return type(reducer_of(Reduced(False), [[0, 1, 2]])).__name__


@row("test_multi_dtype_single_bucket", "a bucket of two kinds")
def _():
    error = error_of(reducer_of, Reduced(), [[0, 1, 2]])
    return error.kinds


@row("test_multi_dtype_multi_bucket", "a bucket of each kind")
def _():
    return type(reducer_of(Reduced())).__name__


def stepped(reducer, model, use_third):
    reducer.prepare_for_forward()
    x = torch.arange(20.0, dtype=torch.float64).reshape(10, 2) + dist.get_rank()
    loss = model(x / 10, use_third).square().mean()
    reducer.prepare_for_backward(loss)
    loss.backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@row("test_forward_backward", "gradients", close=CLOSE)
def _():
    model = Reduced()
    return stepped(reducer_of(model), model, True)


@row("test_forward_backward_unused_parameters", "no gradient", close=CLOSE)
def _():
    model = Reduced()
    reducer = reducer_of(model, find_unused_parameters=True)
    return stepped(reducer, model, False)


@row("test_forward_backward_optimizer", "three steps of Adam", close=CLOSE)
def _():
    model = Reduced()
    reducer = reducer_of(model, find_unused_parameters=True)
    optimizer, found = torch.optim.Adam(model.parameters()), []
    for i in range(3):
        optimizer.zero_grad(set_to_none=False)
        found.append(stepped(reducer, model, i < 3))
        optimizer.step()
    return found
