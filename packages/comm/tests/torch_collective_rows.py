"""Rows of torch's distributed_test: collectives and messages, in three kinds of groups."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch_rows import RowsOf, error_of

row = RowsOf("distributed_test.py")

OPERATIONS = {"sum": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX"}
GROUPS = {
    "": "the world",
    "_group": "ranks 1 and 2",
    "_full_group": "a group of all",
}


def group_of(kind):
    """Returns a group, and its ranks; no group for a rank that is not in it."""
    if kind == "":
        return dist.group.WORLD, list(range(dist.get_world_size()))
    ranks = [1, 2] if kind == "_group" else list(range(dist.get_world_size()))
    group = dist.new_group(ranks)
    return (group if dist.get_rank() in ranks else None), ranks


def in_group(program, kind):
    """Returns a row's function: the program with a group and its ranks."""

    def run():
        group, ranks = group_of(kind)
        return program(group, ranks) if group else "not in the group"

    return run


def in_each_group(pattern, checks, **options):
    """Registers a program for each kind of group."""

    def keep(program):
        for kind, words in GROUPS.items():
            test = pattern.format(kind)
            row.add(test, f"{checks}, {words}", in_group(program, kind), **options)
        return program

    return keep


def mine(*shape, dtype=torch.float32):
    """A tensor of this rank."""
    return torch.full(shape or (3,), dist.get_rank() + 2, dtype=dtype)


def by_operation(pattern, checks, make):
    """Registers a program for each operation in each kind of group."""
    for word, name in OPERATIONS.items():
        in_each_group(pattern.format("{}", word), f"{checks} {name}")(
            make(getattr(ReduceOp, name))
        )


def all_reduces(operation):
    def program(group, ranks):
        found = []
        for dtype in (torch.float32, torch.int64):
            for shape in [(3,), (10, 10), (1000,)]:
                found.append(mine(*shape, dtype=dtype))
                dist.all_reduce(found[-1], operation, group)
        return found

    return program


def reduces(operation):
    def program(group, ranks):
        found = []
        for root in ranks:
            tensor = mine(4)
            dist.reduce(tensor, root, operation, group)
            found.append(tensor if dist.get_rank() == root else "not the root")
        return found

    return program


def all_reduces_coalesced(operation):
    def program(group, ranks):
        tensors = [mine(2), mine(3, 3), mine(1)]
        dist.all_reduce_coalesced(tensors, operation, group)
        return tensors

    return program


by_operation("test_all_reduce{}_{}", "all-reduce", all_reduces)
by_operation("test_reduce{}_{}", "reduce to each root", reduces)
by_operation("test_all_reduce_coalesced{}_{}", "coalesced", all_reduces_coalesced)


@row("test_all_reduce_sum_async", "works that are waited for")
def _():
    tensors = [mine(5), mine(7)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    waited = [work.wait() for work in works]
    return tensors, waited, [work.is_completed() for work in works]


@row("test_reduce_sum_twice", "two reduces in a row")
def _():
    tensors = [mine(5), mine(5)]
    for tensor in tensors:
        dist.reduce(tensor, 0)
    return tensors if dist.get_rank() == 0 else []


@row("test_all_reduce_sum_complex", "complex numbers")
def _():
    tensor = torch.complex(mine(3), mine(3) + 1)
    dist.all_reduce(tensor)
    return tensor


@row("test_all_reduce_complex_unsupported_ops", "operations without an order")
def _():
    names = ("MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR")
    tensor = torch.ones(2, dtype=torch.complex64)
    return [error_of(dist.all_reduce, tensor, getattr(ReduceOp, n)) for n in names]


@row("test_all_reduce_coalesced_max_complex_unsupported", "the maximum of complex")
def _():
    tensors = [torch.ones(2, dtype=torch.complex64)]
    return error_of(dist.all_reduce_coalesced, tensors, ReduceOp.MAX)


@row("test_sparse_all_reduce_sum", "sparse tensors")
def _():
    rank = dist.get_rank()
    found = []
    for places, size in [
        ([[rank]], (3,)),
        ([[0, rank]], (4,)),
        ([[1], [rank]], (2, 3)),
    ]:
        values = torch.ones(len(places[0])) * (rank + 1)
        tensor = torch.sparse_coo_tensor(places, values, size)
        dist.all_reduce(tensor)
        found.append(tensor)
    return found


@in_each_group("test_broadcast{}", "from each root, each dtype")
def _(group, ranks):
    dtypes = torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8
    found = []
    for dtype in (*dtypes, torch.int32, torch.int64, torch.bool, torch.complex64):
        for root in ranks:
            tensor = mine(2, 3).to(dtype)
            dist.broadcast(tensor, root, group)
            found.append(tensor)
    return found


@in_each_group("test_scatter{}", "from each root")
def _(group, ranks):
    found = []
    for root in ranks:
        lists = [torch.full((2,), root * 10.0 + i) for i in range(len(ranks))]
        tensor = torch.zeros(2)
        given = lists if dist.get_rank() == root else None
        dist.scatter(tensor, given, root, group)
        found.append(tensor)
    return found


@row("test_scatter_checks", "lists on roots and on others")
def _():
    one = torch.ones(1)
    lists = [one] * dist.get_world_size()
    rank = dist.get_rank()
    return [
        error_of(dist.scatter, one, [] if rank == 0 else lists, 0),
        error_of(dist.scatter, one, lists if rank == 0 else [], 0),
    ]


@row("test_scatter_complex", "complex numbers")
def _():
    lists = [torch.full((2,), i + 1j) for i in range(dist.get_world_size())]
    tensor = torch.zeros(2, dtype=torch.complex64)
    dist.scatter(tensor, lists if dist.get_rank() == 0 else None, 0)
    return tensor


@in_each_group("test_gather{}", "at each root")
def _(group, ranks):
    found = []
    for root in ranks:
        places = [torch.zeros(2) for _ in ranks] if dist.get_rank() == root else None
        dist.gather(mine(2), places, root, group)
        found.append(places)
    return found


@row("test_gather_checks", "lists on roots and on others")
def _():
    one = torch.ones(1)
    places = [torch.zeros(1) for _ in range(dist.get_world_size())]
    rank = dist.get_rank()
    return [
        error_of(dist.gather, one, [] if rank == 0 else places, 0),
        error_of(dist.gather, one, places if rank == 0 else [], 0),
    ]


@in_each_group("test_all_gather{}", "each rank's tensor")
def _(group, ranks):
    places = [torch.zeros(2, 2) for _ in ranks]
    dist.all_gather(places, mine(2, 2), group)
    return places


@row("test_all_gather_complex", "complex numbers")
def _():
    places = [torch.zeros(2, dtype=torch.complex64) for _ in range(3)]
    dist.all_gather(places, torch.complex(mine(2), -mine(2)))
    return places


def gathers_coalesced(dtype=torch.float32, shapes=((2,), (3, 2))):
    def program(group, ranks):
        tensors = [mine(*shape).to(dtype) for shape in shapes]
        places = [[torch.zeros_like(tensor) for tensor in tensors] for _ in ranks]
        dist.all_gather_coalesced(places, tensors, group)
        return places

    return program


for _test, _kind, _options in (
    ("simple", "", {}),
    ("complex", "", {"dtype": torch.complex64}),
    ("group", "_group", {}),
    ("full_group", "_full_group", {}),
    ("with_empty", "", {"shapes": ((2,), (0,), (3, 2))}),
):
    row.add(
        f"test_all_gather_coalesced_{_test}",
        "several tensors of each rank",
        in_group(gathers_coalesced(**_options), _kind),
    )


def exchanges(dtype, is_equal):
    def program(group, ranks):
        size, me = len(ranks), ranks.index(dist.get_rank())
        sent = [2] * size if is_equal else [me + 1] * size
        received = [2] * size if is_equal else [i + 1 for i in range(size)]
        given = torch.arange(float(sum(sent) * 3)).reshape(-1, 3) + 100 * me
        taken = torch.zeros(sum(received), 3, dtype=dtype)
        splits = [] if is_equal else [received, sent]
        dist.all_to_all_single(taken, given.to(dtype), *splits, group=group)
        return taken

    return program


for _split in ("equal", "unequal"):
    for _kind, _words in GROUPS.items():
        row.add(
            f"test_all_to_all_single_{_split}_split{_kind}",
            f"{_split} parts, {_words}",
            in_group(exchanges(torch.float32, _split == "equal"), _kind),
        )
    row.add(
        f"test_all_to_all_single_{_split}_split_complex",
        f"{_split} parts, complex",
        in_group(exchanges(torch.complex64, _split == "equal"), ""),
    )


def swaps_lists(dtype):
    def program(group, ranks):
        me = ranks.index(dist.get_rank())
        given = [
            torch.full((i + 1,), 10 * me + i, dtype=dtype) for i in range(len(ranks))
        ]
        taken = [torch.zeros(me + 1, dtype=dtype) for _ in ranks]
        dist.all_to_all(taken, given, group)
        return taken

    return program


in_each_group("test_all_to_all{}", "lists of tensors")(swaps_lists(torch.float32))
row.add(
    "test_all_to_all_complex",
    "lists of complex tensors",
    in_group(swaps_lists(torch.complex64), ""),
)


@in_each_group("test_barrier{}", "what came before has ended")
def _(group, ranks):
    tensor = mine(1000)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    dist.barrier(group)
    work.wait()
    return tensor, dist.barrier(group, async_op=True).wait()


# Messages from rank to rank.


def to_each_other(tag=None, *, is_any_source=False):
    rank, found = dist.get_rank(), []
    tags = [] if tag is None else [tag]
    for source in range(3):
        for target in range(3):
            if rank == source != target:
                dist.send(torch.full((3,), 10.0 * source + target), target, None, *tags)
            if rank == target != source:
                tensor = torch.zeros(3)
                place = None if is_any_source else source
                came_from = dist.recv(tensor, place, None, *tags)
                found.append([tensor, came_from])
    return found


def profiled(program, with_torch_profiler):
    """Returns the result and how often each name of the backend was seen."""
    if with_torch_profiler:
        activity = torch.profiler.ProfilerActivity.CPU
        profiler = torch.profiler.profile(activities=[activity], record_shapes=True)
    else:
        profiler = torch.autograd.profiler.profile(record_shapes=True)
    with profiler as found:
        result = program()
    events = found.events() if with_torch_profiler else found.function_events
    seen = {}
    for event in events:
        # Kineto tells of one from another thread twice.
        if event.name.startswith("gloo:"):
            seen.setdefault(event.name, set()).add(event.time_range.start)
    return result, {name: len(starts) for name, starts in sorted(seen.items())}


def sends_ahead():
    """Rank 0 sends to each other rank by isend."""
    if dist.get_rank() == 0:
        works = [dist.isend(torch.full((2,), 5.0 + i), i) for i in (1, 2)]
        return [work.wait() for work in works], [work.is_completed() for work in works]
    tensor = torch.zeros(2)
    dist.recv(tensor, 0)
    return tensor


for _test, _program, _words in (
    ("send_recv", to_each_other, "messages"),
    (
        "send_recv_any_source",
        lambda: to_each_other(is_any_source=True),
        "from whom one came",
    ),
    ("send_recv_with_tag", lambda: to_each_other(7), "messages with a tag"),
    ("isend", sends_ahead, "a send that is waited for"),
):
    row.add(f"test_{_test}", _words, _program)
    row.add(
        f"test_{_test}_autograd_profiler",
        f"{_words}, seen by the profiler",
        lambda program=_program: profiled(program, False),
    )
    row.add(
        f"test_{_test}_torch_profiler",
        f"{_words}, seen by torch.profiler",
        lambda program=_program: profiled(program, True),
    )


@row("call_dist_op: an all-reduce", "events that end in another thread")
def _():
    dist.all_reduce(torch.ones(1))
    events = []
    for size in range(1, 41):
        # What ends after the profiler has ended would be its end.
        with torch.autograd.profiler.profile() as found:
            dist.all_reduce(torch.ones(size))
        events += [e for e in found.function_events if e.name == "gloo:all_reduce"]
    return [event.is_async for event in events]


@row("call_dist_op: works that are polled", "each event has ended with its work")
def _():
    dist.all_reduce(torch.ones(1))
    events = []
    for limit in [None, timedelta(seconds=5)] * 15:
        with torch.autograd.profiler.profile() as found:
            work = dist.all_reduce(torch.ones(5), async_op=True)
            if limit:
                work.wait(limit)
            while not work.is_completed():
                time.sleep(0)
        events += [e for e in found.function_events if e.name == "gloo:all_reduce"]
    return len(events)


@row("test_irecv", "receives that are waited for")
def _():
    if dist.get_rank() != 0:
        return dist.send(mine(3), 0)
    tensors = [torch.zeros(3) for _ in (1, 2)]
    works = [dist.irecv(tensor, i + 1) for i, tensor in enumerate(tensors)]
    for work in works:
        work.wait()
    return tensors


def in_a_batch(tags):
    rank = dist.get_rank()
    others = [other for other in range(3) if other != rank]
    given = {other: torch.full((2,), 10.0 * rank + other) for other in others}
    taken = {other: torch.zeros(2) for other in others}
    parts = []
    for other in others:
        to, of = ({"tag": rank}, {"tag": other}) if tags else ({}, {})
        parts.append(dist.P2POp(dist.isend, given[other], other, **to))
        parts.append(dist.P2POp(dist.irecv, taken[other], other, **of))
    for work in dist.batch_isend_irecv(parts):
        work.wait()
    return taken


row.add("test_batch_isend_irecv_gloo", "all at once", lambda: in_a_batch(False))
row.add("test_batch_isend_irecv_gloo_tags", "all, with tags", lambda: in_a_batch(True))


@row("test_batch_isend_irecv_op_err", "an operation of another kind")
def _():
    return error_of(dist.P2POp, dist.broadcast, mine(2), 1)


@row("test_batch_isend_irecv_op_list_err", "a list of something else")
def _():
    return error_of(dist.batch_isend_irecv, [1, 2])


@row("test_all_gather_object_default_pg", "objects of all ranks")
def _():
    places = [None] * 3
    dist.all_gather_object(places, {"rank": dist.get_rank(), "word": "a" * 5})
    return places


@row("test_all_gather_object_subgroup", "objects in a group")
def _():
    group, _ = group_of("_group")
    places = [None, None]
    if group:
        dist.all_gather_object(places, [dist.get_rank()], group)
    return places


def gathers_objects(kind):
    group, ranks = group_of(kind)
    if not group:
        return None
    root = ranks[-1]
    places = [None] * len(ranks) if dist.get_rank() == root else None
    dist.gather_object(("of", dist.get_rank()), places, root, group)
    return places


row.add("test_gather_object", "objects at one rank", lambda: gathers_objects(""))
row.add("test_gather_object_subgroup", "in a group", lambda: gathers_objects("_group"))


@row("test_broadcast_object_list", "objects of one rank")
def _():
    objects = ["a", 1, {"b": 2}] if dist.get_rank() == 0 else [None] * 3
    dist.broadcast_object_list(objects, 0)
    return objects


@row("test_scatter_object_list", "an object for each rank")
def _():
    objects = ["a", (1, 2), None] if dist.get_rank() == 0 else None
    place = [0]
    dist.scatter_object_list(place, objects, 0)
    return place, error_of(dist.scatter_object_list, [], objects, 0)
