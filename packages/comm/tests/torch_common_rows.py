"""Rows of torch's test_c10d_common and test_functional_api, under the default group."""

import copy
import pickle
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, distributed_c10d
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch_rows import CLOSE, RowsOf, error_of, warned_of

row = RowsOf("test_c10d_common.py")
spread = RowsOf("distributed_test.py")
gloo = RowsOf("test_c10d_gloo.py")
traced = RowsOf("test_functional_api.py")
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


@spread("test_get_rank", "rank and size")
def _():
    return dist.get_rank(), dist.get_world_size()


@spread("test_get_backend", "names of groups' backends")
def _():
    group = dist.new_group([0, 1])
    name = str(dist.get_backend(group)) if dist.get_rank() < 2 else ""
    return str(dist.get_backend()), name


@spread("test_Backend_enum_class", "names in any case")
def _():
    names = [str(dist.Backend(name)) for name in ("gloo", "GLOO", "Gloo")]
    return names, error_of(dist.Backend, None), error_of(dist.Backend, 3)


def sizes(ranks):
    group = dist.new_group(ranks)
    if dist.get_rank() not in ranks:
        return dist.get_rank(group), dist.get_world_size(group)
    return group.rank(), group.size(), dist.get_rank(group), dist.get_world_size(group)


spread.add("test_get_rank_size_group", "of a part", lambda: sizes([0, 2]))
spread.add("test_get_rank_size_full_group", "of all", lambda: sizes([0, 1, 2]))


def destroys(ranks):
    group = dist.new_group(ranks)
    if dist.get_rank() in ranks:
        dist.all_reduce(torch.ones(3), group=group)
        dist.destroy_process_group(group)
        return error_of(dist.get_backend, group).kinds, error_of(
            dist.get_rank, group
        ).kinds
    return None


spread.add("test_destroy_group", "of a part", lambda: destroys([0, 1]))
spread.add("test_destroy_full_group", "of all", lambda: destroys([0, 1, 2]))


def late(begin, ranks=(0, 1, 2)):
    """Who waits for a rank that does not come; the classes of errors."""
    group = dist.new_group(list(ranks), timeout=timedelta(seconds=1))
    if dist.get_rank() not in ranks or dist.get_rank() == ranks[-1]:
        return None
    error = error_of(begin, group)
    return error if error == "no error" else "RuntimeError" in error.kinds


for _test, _ranks in (("group", (0, 1)), ("full_group", (0, 1, 2))):
    spread.add(
        f"test_barrier_timeout_{_test}",
        "a rank does not come",
        lambda ranks=_ranks: late(lambda group: dist.barrier(group), ranks),
    )
spread.add(
    "test_monitored_barrier_gloo_subgroup",
    "a rank does not come",
    lambda: late(
        lambda group: dist.monitored_barrier(group, timedelta(seconds=0.5)), (0, 1)
    ),
)
row.add(
    "AbstractCommTest: an all-reduce without a rank",
    "an error in time",
    lambda: late(lambda group: dist.all_reduce(torch.ones(3), group=group)),
)


def watches(is_late, *, wait_all=False):
    """Rank 2 of a monitored barrier comes or does not; what rank 0 says of it."""
    group = dist.new_group(timeout=timedelta(seconds=5))
    if is_late and dist.get_rank() == 2:
        return None
    limit = timedelta(seconds=0.5)
    error = error_of(dist.monitored_barrier, group, limit, wait_all)
    return error if dist.get_rank() == 0 or not is_late else None


spread.add("test_monitored_barrier_gloo", "all come", lambda: watches(False))
spread.add("test_monitored_barrier_failure_order", "who is late", lambda: watches(True))
spread.add(
    "test_monitored_barrier_wait_all_ranks",
    "all who are late",
    lambda: watches(True, wait_all=True),
)


@spread("test_monitored_barrier_allreduce_hang", "one is in an all-reduce")
def _():
    group = dist.new_group(timeout=timedelta(seconds=2))
    if dist.get_rank() == 2:
        error = error_of(dist.all_reduce, torch.ones(10), group=group)
        return "RuntimeError" in error.kinds
    limit = timedelta(seconds=0.5)
    error = error_of(dist.monitored_barrier, group, limit)
    return error if dist.get_rank() == 0 else None


@spread("test_new_subgroups_group_size_exceeds_world_size", "a size of 4")
def _():
    return error_of(dist.new_subgroups, 4)


@spread("test_new_subgroups_world_size_not_divisible_by_group_size", "a size of 2")
def _():
    return error_of(dist.new_subgroups, 2)


@spread("test_new_subgroups", "groups of one")
def _():
    group, groups = dist.new_subgroups(1)
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    return group.size(), group.rank(), len(groups), tensor


@spread("test_new_subgroups_by_enumeration", "groups by lists")
def _():
    group, groups = dist.new_subgroups_by_enumeration([[0, 2], [1]])
    tensor = torch.full((2,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor, group=group)
    return group.size(), len(groups), tensor


for _test, _lists in (
    ("input_rank_exceeds_world_size", [[0, 1], [2, 3]]),
    ("negative_input_rank", [[-1, -2], [-3]]),
):
    spread.add(
        f"test_new_subgroups_by_enumeration_{_test}",
        "ranks that are not there",
        lambda lists=_lists: error_of(dist.new_subgroups_by_enumeration, lists),
    )


@spread("test_new_subgroups_overlap_not_allowed", "a rank in two")
def _():
    return error_of(dist.new_subgroups_by_enumeration, [[0], [1, 2], [0, 2]])


def counts(group, checker):
    """The number of a group's collectives, after each of some."""
    found = [group._get_sequence_number_for_group()]
    for _ in range(5):
        dist.all_reduce(torch.ones(1), group=group)
        found.append(group._get_sequence_number_for_group())
    places = [None] * checker.size()
    dist.all_gather_object(places, found, group=checker)
    return [[count - one[0] for count in one] for one in places]


@gloo("test_sequence_num_incremented_gloo_default", "collectives are counted")
def _():
    return counts(dist.group.WORLD, dist.new_group())


@gloo("test_sequence_num_incremented_gloo_subgroup", "collectives are counted")
def _():
    group, checker = dist.new_group([0, 1]), dist.new_group([0, 1])
    return counts(group, checker) if dist.get_rank() < 2 else None


@gloo("test_sequence_num_set_default_pg_gloo", "the same on all ranks")
def _():
    places = [None] * 3
    dist.all_gather_object(places, dist.group.WORLD._get_sequence_number_for_group())
    return len(set(places))


@gloo("test_sequence_num_set_gloo_new_group", "the same on all ranks")
def _():
    group = dist.new_group()
    places = [None] * 3
    dist.all_gather_object(places, group._get_sequence_number_for_group(), group=group)
    return places


@gloo("test_gloo_warn_not_in_group", "calls of others")
def _():
    group, tensor = dist.new_group([0, 2]), torch.zeros(2)
    places = [torch.zeros(2), torch.zeros(2)]
    calls = [
        lambda: dist.all_gather(places, tensor, group=group),
        lambda: dist.all_reduce(tensor, group=group),
        lambda: dist.barrier(group=group),
        lambda: dist.broadcast(tensor, 0, group=group),
    ]
    return [warned_of(call) for call in calls]


@gloo("test_gloo_rank_membership", "ranks in the group and in the world")
def _():
    group = dist.new_group([1])
    return (
        dist.get_group_rank(group, 1),
        dist.get_global_rank(group, 0),
        dist.get_process_group_ranks(group),
        error_of(dist.get_group_rank, group, 0).kinds,
        error_of(dist.get_global_rank, group, 1).kinds,
        error_of(dist.get_group_rank, object(), 0).kinds,
    )


@gloo("test_tensor_dtype_mismatch", "kinds that differ")
def _():
    tensor, half = torch.ones(2), torch.ones(2).half()
    whole, mixed = [tensor] * 3, [tensor, half, tensor]
    return [
        error_of(dist.all_gather, mixed, tensor),
        error_of(dist.all_gather, whole, half),
        error_of(dist.all_gather_coalesced, [mixed], whole),
        error_of(dist.all_reduce_coalesced, mixed),
        error_of(dist.reduce_scatter, tensor, mixed),
        error_of(dist.reduce_scatter, half, whole),
        error_of(dist.all_to_all_single, half, tensor),
        error_of(dist.all_to_all, mixed, whole),
        error_of(dist.all_to_all, whole, mixed),
        error_of(dist.scatter, tensor, mixed),
        error_of(dist.gather, half, whole),
        error_of(dist.gather, tensor, mixed),
        error_of(dist.scatter, half, whole),
    ]


@gloo("test_tensor_dtype_complex", "complex beside real")
def _():
    real = torch.arange(2.0) + dist.get_rank()
    places = [torch.zeros(2) for _ in range(3)]
    mixed = [places[0], torch.view_as_complex(torch.zeros(2)), places[2]]
    for taken in (places, mixed):
        for given in (real, torch.view_as_complex(real)):
            dist.all_gather(taken, given)
    return places, mixed


@gloo("test_bool_tensors", "a broadcast of truths")
def _():
    tensor = torch.tensor([1, 0, 0, 1], dtype=torch.bool)
    tensor = tensor if dist.get_rank() == 0 else torch.zeros_like(tensor)
    dist.broadcast(tensor, 0)
    return tensor


@row("test_bool_tensors: all-reduce", "sums and maxima of truths")
def _():
    found = []
    for name in ("SUM", "MAX", "BOR", "BAND"):
        tensor = torch.tensor([dist.get_rank() == 1, False, True])
        found.append(
            [error_of(dist.all_reduce, tensor, getattr(ReduceOp, name)), tensor]
        )
    return found


@gloo("test_new_group_local_sync", "without the others", fresh=True)
def _():
    rank = dist.get_rank()
    ranks = [0, 2]
    if rank == 1:
        found = dist.new_group(ranks, use_local_synchronization=True)
        return found is dist.GroupMember.NON_GROUP_MEMBER
    group = dist.new_group(ranks, use_local_synchronization=True)
    return dist.get_process_group_ranks(group), dist.get_group_rank(group, rank)


def local_groups(count):
    rank = dist.get_rank()
    ranks = [0, 1] if rank < 2 else [2]
    found = []
    groups = [
        dist.new_group(ranks, use_local_synchronization=True) for _ in range(count)
    ]
    for group in groups:
        places = [torch.zeros(2) for _ in ranks]
        dist.all_gather(places, torch.tensor([rank, 7.0]), group=group)
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor, group=group)
        found.append([places, tensor])
    return found


for _test, _count in (("sanity_check", 1), ("duplicate_pg", 2)):
    gloo.add(
        f"test_new_group_local_sync_{_test}",
        f"{_count} of the same ranks",
        lambda count=_count: local_groups(count),
        fresh=True,
    )


@row("test_new_group_ordered", "ranks in an order of their own")
def _():
    group = dist.new_group([2, 1, 0], sort_ranks=False)
    rank = dist.get_rank()
    places = [torch.zeros(1) for _ in range(3)]
    dist.all_gather(places, torch.tensor([float(rank)]), group=group)
    tensor = torch.tensor([10.0**rank])
    dist.all_reduce(tensor, group=group)
    ranks = dist.get_process_group_ranks(group)
    return dist.get_group_rank(group, rank), ranks, places, tensor


@row("test_op_isinstance_of_reduceop", "kinds of operations")
def _():
    return [isinstance(getattr(ReduceOp, name), ReduceOp) for name in OPERATIONS]


@row("test_reduceop_copyable", "copies are equal")
def _():
    found = [getattr(ReduceOp, name) for name in OPERATIONS]
    return [copy.copy(one) == one and copy.deepcopy(one) == one for one in found]


@row("test_reduceop_pickle", "and so is what was pickled")
def _():
    found = [ReduceOp(getattr(ReduceOp, name)) for name in OPERATIONS]
    return [pickle.loads(pickle.dumps(one)) == one for one in found]


@row("test_reduceop_equal", "equality")
def _():
    found = [getattr(ReduceOp, name) for name in OPERATIONS]
    return [[ReduceOp(one) == other for other in (*found, "abc")] for one in found]


@row("PREMUL_SUM", "an operation of NCCL")
def _():
    operation = dist._make_nccl_premul_sum(2.0)
    return error_of(dist.all_reduce, torch.ones(2), operation)


@row("test_debug_level", "from the environment", alone=True)
def _():
    import os

    found = []
    for word in ("OFF", "off", "INFO", "INfO", "DETAIL", "DeTaIl", "foo", "0"):
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = word
        error = error_of(dist.set_debug_level_from_env)
        found.append([error, str(dist.get_debug_level())])
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "OFF"
    dist.set_debug_level_from_env()
    return found


@row("test_send_recv", "targets that are not one")
def _():
    tensor, rank = torch.zeros(2), dist.get_rank()
    return [
        error_of(dist.send, tensor, rank),
        error_of(dist.send, tensor, group_dst=rank),
        error_of(dist.send, tensor, rank, group_dst=rank),
        error_of(dist.send, tensor),
        error_of(dist.recv, tensor, src=0, group_src=0),
    ]


@row("testNodeLocalRank", "from the environment")
def _():
    return dist.get_node_local_rank(), dist.get_node_local_rank(fallback_rank=9)


@row("test_get_backend_impl", "the class below a group")
def _():
    return type(dist.get_backend_impl(device=torch.device("cpu"))).__name__


# Collectives as functions: what torch.compile and DTensor call.


def mesh_of(*shape):
    return DeviceMesh("cpu", torch.arange(3).view(*shape or (3,)))


def mine(*shape):
    return torch.full(shape or (4,), dist.get_rank() + 1.0)


def waited(value):
    if isinstance(value, list | tuple):
        return [waited(one) for one in value]
    wait = getattr(value, "wait", None)
    return wait() if wait else value


@traced("test_broadcast", "from rank 0")
def _():
    return waited(functional.broadcast(mine(), 0, mesh_of()))


@traced("test_all_reduce_eager", "over one and two dimensions")
def _():
    found = [
        functional.all_reduce(mine(), name, mesh_of()) for name in ("sum", "avg", "max")
    ]
    mesh = init_device_mesh("cpu", (3, 1))
    found += [functional.all_reduce(mine(), "sum", (mesh, i)) for i in (0, 1)]
    return waited(found)


@traced("test_all_reduce_coalesced_eager", "two tensors")
def _():
    return waited(functional.all_reduce_coalesced([mine(4), mine(6)], "sum", mesh_of()))


@traced("test_all_gather_tensor", "along each dimension")
def _():
    given = mine(3, 2, 2)
    return [
        waited(functional.all_gather_tensor(given, gather_dim=i, group=(mesh_of(), 0)))
        for i in range(3)
    ]


@traced("test_all_gather_into_tensor_coalesced", "two tensors")
def _():
    given = [mine(4), mine(4) + 1]
    return waited(functional.all_gather_into_tensor_coalesced(given, mesh_of()))


@traced("test_reduce_scatter_tensor", "along each dimension")
def _():
    given = torch.arange(36.0).reshape(6, 6) * (dist.get_rank() + 1)
    return [
        waited(functional.reduce_scatter_tensor(given, "sum", i, (mesh_of(), 0)))
        for i in range(2)
    ]


@traced("test_reduce_scatter_into_tensor_coalesced", "two tensors")
def _():
    given = [torch.ones(3, dtype=torch.int64), torch.arange(6)]
    return waited(
        functional.reduce_scatter_tensor_coalesced(given, "sum", [0, 0], mesh_of())
    )


def exchanged(given, taken_splits, given_splits):
    return waited(
        functional.all_to_all_single(given, taken_splits, given_splits, mesh_of())
    )


def exchange_in_parts(*rest):
    rank = dist.get_rank()
    splits = [(i + 1) * (rank + 1) for i in range(3)]
    return exchanged(torch.full((sum(splits), *rest), rank + 1.0), splits, splits)


traced.add("test_all_to_all_single", "two dimensions", lambda: exchange_in_parts(5))
traced.add("test_all_to_all_single_1d_input", "one dimension", exchange_in_parts)
traced.add(
    "test_all_to_all_single_split_sizes_none",
    "equal parts",
    lambda: exchanged(mine(3, 3), None, None),
)
traced.add(
    "test_all_to_all_single_output_split_sizes_none",
    "parts that are given",
    lambda: exchanged(mine(3, 3), None, [1, 1, 1]),
)
traced.add(
    "test_all_to_all_single_input_split_sizes_none",
    "parts that are taken",
    lambda: exchanged(mine(3, 3), [1, 1, 1], None),
)


@traced("test_permute_tensor_with_sub_group", "each to the next")
def _():
    return waited(functional.permute_tensor(mine(), [1, 2, 0], mesh_of()))


@traced("TestGradCollectives.test_all_reduce", "gradients of others")
def _():
    x, y = mine().requires_grad_(), mine().requires_grad_()
    (functional.all_reduce(x, "sum", dist.group.WORLD) + y).sum().backward()
    return x.grad, y.grad


@traced("TestCollectives: with gradients", "through an all-reduce")
def _():
    x = mine().requires_grad_()
    out = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return [out.requires_grad, waited(out).detach()]


@traced("test_all_reduce_tracing", "operations of a graph")
def _():
    from torch.fx.experimental.proxy_tensor import make_fx

    def program(given):
        return functional.all_reduce(given, "sum", dist.group.WORLD) + 1

    graph = make_fx(program)(torch.rand(4))
    return [str(node.target).partition(".")[2] for node in graph.graph.nodes]


@traced("TestMetaCollectives.test_all_reduce", "the shape alone")
def _():
    given = torch.rand((2, 3, 4), device="meta")
    return list(functional.all_reduce(given, "sum", dist.group.WORLD).shape)


@traced("test_tracing", "torch.compile of an all-reduce", close=CLOSE)
def _():
    def program(given):
        return functional.all_reduce(given * 2, "sum", dist.group.WORLD) + 1

    return waited(torch.compile(program, backend="eager", fullgraph=True)(mine()))


@traced("test_expand_process_group", "ranks and tag of a group")
def _():
    tag, ranks, size = functional._expand_group(dist.group.WORLD)
    is_its = tag == distributed_c10d._get_group_tag(dist.group.WORLD)
    return is_its, ranks, size


@traced("test_expand_device_mesh", "ranks of a mesh")
def _():
    return functional._expand_group(mesh_of())[1:]


@traced("test_expand_device_mesh_tuple", "ranks of a dimension")
def _():
    mesh = init_device_mesh("cpu", (3, 1))
    return [functional._expand_group((mesh, i))[1:] for i in (0, 1)]


@traced("test_pg_creation_with_tag", "one group for each tag")
def _():
    def tagged(tag):
        return distributed_c10d._new_group_with_tag([0, 1, 2], pg_tag=tag)

    one, again, other = tagged("a"), tagged("a"), tagged("b")
    return one is again, one is other


@traced("test_find_root_pg", "the default group by its ranks")
def _():
    found = distributed_c10d._find_pg_by_ranks_and_tag("", [0, 1, 2])
    return found is dist.group.WORLD


@traced("test_find_or_create_pg", "a group that is there")
def _():
    make = distributed_c10d._find_or_create_pg_by_ranks_and_tag
    one = make("c", [0, 1, 2], 3)
    return one is make("c", [0, 1, 2], 3)
