"""Random programs of collectives: what each rank does, step by step, made of a seed.

Every program is legal under stock Gloo, which says what its results are to be.
"""

import random
from dataclasses import dataclass, replace

INTEGERS = ("uint8", "int8", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
USUAL = (*INTEGERS, *FLOATS, "bool")
BIT_OPERATIONS = ("BAND", "BOR", "BXOR")

# What may be reduced, gathered or moved, and how often each is drawn.
KINDS = {
    "all_reduce": 12,
    "all_reduce_coalesced": 3,
    "all_gather": 1,
    "all_gather_into_tensor": 2,
    "reduce": 1,
    "reduce_scatter": 1,
    "reduce_scatter_tensor": 1,
    "broadcast": 2,
    "scatter": 1,
    "gather": 1,
    "all_to_all": 1,
    "all_to_all_single": 1,
    "send_recv": 1,
    "recv_any_source": 1,
    "batch_isend_irecv": 1,
    "barrier": 2,
    "monitored_barrier": 0.3,
    "all_gather_object": 0.5,
    "broadcast_object_list": 0.5,
    "gather_object": 0.5,
    "scatter_object_list": 0.5,
}
REDUCING = {
    *("all_reduce", "all_reduce_coalesced", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor"),
}
POINT_TO_POINT = {"send_recv", "recv_any_source", "batch_isend_irecv"}
# Gloo has no future of these, and does not end them if nobody waits.
WAITED_FOR = {*POINT_TO_POINT, "reduce_scatter", "reduce_scatter_tensor", "barrier"}
# Gloo reads other tensors as if their elements lay side by side, or refuses them.
MAY_BE_TRANSPOSED = {"all_reduce", "reduce", "broadcast", "all_gather", "gather"}
MAY_HAVE_GAPS = {"broadcast", "all_gather", "gather"}
ALWAYS_SYNC = {
    *("monitored_barrier", "all_gather_object", "broadcast_object_list"),
    *("gather_object", "scatter_object_list"),
}
ALGORITHMS = (
    *(None, None, None, "ring", "direct", "halving"),
    *("hierarchical-ring", "hierarchical-direct", "hierarchical-halving"),
)
MIB = 1 << 20
_SMALL_S, _LATE_S = 0.03, 2.0
_MOST_GROUPS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step, the same on all ranks.

    Args:
        kind: A collective, `new_group`, `destroy_group`, `wait` or `threads`.
        group: 0 is the world; else that of `new_group`.
        size: Elements of each tensor.
        dtype: Theirs.
        layout: `plain`, `offset`, `transposed` or `gaps`.
        operation: Of `torch.distributed.ReduceOp`.
        root: Its place in the group.
        mode: `sync`; or async, and waited for later (`later`), seen by a callback
            (`then`), or dropped (`drop`).
        late: A rank and how many seconds late it is.
        ranks: Of a new group.
        threads: What each thread does in a group of its own.
    """

    kind: str
    group: int = 0
    size: int = 0
    dtype: str = "float32"
    layout: str = "plain"
    operation: str = "SUM"
    root: int = 0
    mode: str = "sync"
    late: tuple[int, float] | None = None
    ranks: tuple[int, ...] = ()
    threads: tuple[tuple["Step", ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """How a rank is lost.

    Args:
        rank: Which.
        step: Before which step.
        how: `kill` by itself, `timer`: killed some milliseconds after the step began,
            `exit`, or `leave`: it destroys its groups, and lives on.
        after_s: Of `timer`.
    """

    rank: int
    step: int
    how: str
    after_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program of collectives.

    Args:
        seed: What it was made of.
        num_ranks: 2 to 4.
        steps: In order.
        is_exact: Whether all sums are exact in their dtype, in whatever order.
        ends_with_barrier: Else the groups are destroyed with what was dropped in them.
        algorithm: Of `drivetrain_comm.enable`.
        hosts: For each rank the name of the host that it claims to be on.
        loss: Of a rank, or None.
    """

    seed: int
    num_ranks: int
    steps: tuple[Step, ...]
    is_exact: bool
    ends_with_barrier: bool
    algorithm: str | None
    hosts: tuple[str, ...]
    loss: Loss | None = None


def make_program(seed: int, *, loses_a_rank: bool = False) -> Program:
    """Returns the program of a seed.

    Example:
        >>> make_program(1) == make_program(1)
        True
        >>> make_program(1, loses_a_rank=True).loss is None
        False
    """
    dice = random.Random(f"{seed} {loses_a_rank}")
    num_ranks = dice.choice((2, 2, 3, 4))
    steps = _steps(dice, num_ranks, calm=loses_a_rank)
    loss = None
    if loses_a_rank:
        loss = Loss(
            rank=dice.randrange(num_ranks),
            step=dice.randrange(len(steps)),
            how=dice.choice(("kill", "kill", "timer", "exit", "leave")),
            after_s=dice.uniform(0, 0.05),
        )
    hosts = dice.choice(("0000", "0000", "0011", "0123", "0102"))
    return Program(
        seed=seed,
        num_ranks=num_ranks,
        steps=tuple(steps),
        is_exact=loses_a_rank or dice.random() < 0.85,
        ends_with_barrier=loses_a_rank or dice.random() < 0.6,
        algorithm=dice.choice(ALGORITHMS),
        hosts=tuple(hosts[:num_ranks]),
        loss=loss,
    )


def _steps(dice: random.Random, num_ranks: int, *, calm: bool) -> list[Step]:
    groups = {0: tuple(range(num_ranks))}
    steps: list[Step] = []
    num_made = 0
    for _ in range(dice.randint(4, 16)):
        roll = dice.random()
        if roll < 0.08 and len(groups) <= _MOST_GROUPS:
            num_made += 1
            # Torch wants them sorted, and a rank may be alone.
            count = dice.randint(1, num_ranks)
            ranks = tuple(sorted(dice.sample(range(num_ranks), count)))
            groups[num_made] = ranks
            steps.append(Step(kind="new_group", group=num_made, ranks=ranks))
        elif roll < 0.12 and len(groups) > 1:
            gone = dice.choice([group for group in groups if group])
            steps.append(Step(kind="destroy_group", group=gone, ranks=groups.pop(gone)))
        elif roll < 0.20:
            steps.append(Step(kind="wait"))
        elif roll < 0.24:
            threads = tuple(_thread(dice, num_ranks) for _ in range(dice.randint(2, 3)))
            steps.append(Step(kind="threads", threads=threads))
        else:
            group = dice.choice((0, *groups))
            one = _collective(dice, group, groups[group])
            steps.append(replace(one, late=_late(dice, num_ranks, calm=calm)))
    if not calm and dice.random() < 0.03:
        steps += _flood(dice, num_ranks)
    return steps


def _late(dice: random.Random, num_ranks: int, *, calm: bool) -> tuple | None:
    roll = dice.random()
    if roll < 0.1:
        return dice.randrange(num_ranks), dice.uniform(0, _SMALL_S)
    if roll < 0.103 and not calm:
        return dice.randrange(num_ranks), dice.uniform(_LATE_S / 4, _LATE_S)
    return None


def _flood(dice: random.Random, num_ranks: int) -> list[Step]:
    """One rank is late, while the others begin far more than it is to store."""
    size = dice.choice((MIB // 4, MIB, MIB // 32))
    count = dice.randint(8, 12) * MIB // size
    late = dice.randrange(num_ranks), dice.uniform(0.5, _LATE_S / 2)
    step = Step(kind="all_reduce", size=size, mode="later")
    return [replace(step, late=late), *[step] * (min(count, 40) - 1)]


def _thread(dice: random.Random, num_ranks: int) -> tuple[Step, ...]:
    ranks = tuple(range(num_ranks))
    found = []
    while len(found) < 3:
        step = _collective(dice, 0, ranks)
        # Objects go through a default device, monitored barriers through the store.
        if step.kind not in ALWAYS_SYNC | POINT_TO_POINT and step.mode != "drop":
            found.append(replace(step, size=min(step.size, 10_000)))
    return tuple(found)


def _collective(dice: random.Random, group: int, ranks: tuple[int, ...]) -> Step:
    kind = dice.choices([*KINDS], [*KINDS.values()])[0]
    if kind in POINT_TO_POINT and len(ranks) == 1:
        kind = "all_reduce"
    operation, dtype = _operation(dice, kind)
    size = _size(dice)
    if kind == "recv_any_source":
        # Gloo waits for ever for nothing from anybody.
        size = max(size, 1)
    layouts = ["plain", "plain", "offset"]
    if kind in MAY_BE_TRANSPOSED:
        layouts += ["transposed"]
    if kind in MAY_HAVE_GAPS:
        layouts += ["gaps"]
    modes = ["sync", "sync", "later", "later"]
    if kind not in WAITED_FOR:
        modes += ["then", "drop"]
    if kind == "recv_any_source" or kind in ALWAYS_SYNC:
        modes = ["sync"]
    return Step(
        kind=kind,
        group=group,
        size=size,
        dtype=dtype,
        layout=dice.choice(layouts),
        operation=operation,
        root=dice.randrange(len(ranks)),
        mode=dice.choice(modes),
    )


def _operation(dice: random.Random, kind: str) -> tuple[str, str]:
    """Returns an operation and a dtype that Gloo has for it."""
    if kind not in REDUCING:
        every = USUAL if kind == "gather" else (*USUAL, "complex64")
        return "SUM", dice.choice(every)
    names = ["SUM", "SUM", "SUM", "PRODUCT", "MIN", "MAX", *BIT_OPERATIONS]
    if kind.startswith("all_reduce"):
        names += ["AVG"]
    operation = dice.choice(names)
    if operation == "AVG":
        return operation, dice.choice(FLOATS)
    if operation in BIT_OPERATIONS:
        return operation, dice.choice((*INTEGERS, "bool"))
    if operation == "SUM" and kind == "all_reduce":
        return operation, dice.choice((*USUAL, "complex64"))
    return operation, dice.choice(USUAL)


def _size(dice: random.Random) -> int:
    roll = dice.random()
    if roll < 0.2:
        return dice.choice((0, 1, 1, 2, 3))
    if roll < 0.7:
        return dice.randint(4, 2000)
    if roll < 0.9:
        return dice.randint(2000, 40_000)
    if roll < 0.97:
        return dice.randint(40_000, 250_000)
    return dice.randint(250_000, 500_000)
