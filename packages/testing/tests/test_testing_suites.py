"""The contract suites find what is broken."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import drivetrain_testing as testing
from drivetrain_core._errors import CheckpointError
from drivetrain_core.services import (
    BatchPlan,
    ClusterSpec,
    DcpCheckpointer,
    RankBatch,
    TorchProcessGroupFactory,
    local_cluster,
)
from drivetrain_core.services._checkpoint_folder import Folder
from drivetrain_core.services._dcp_checkpointer import DurableSave
from drivetrain_testing import (
    check_batch_plan,
    check_checkpointer,
    check_cluster_spec,
    check_job_store,
    check_process_group_factory,
)
from drivetrain_testing._clauses import must_raise, require


def breaks(clause):
    """What a suite must raise for an implementation that breaks a clause."""
    return pytest.raises(AssertionError, match=clause)


def test_public_names_all_load():
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    assert set(testing.__all__) <= set(dir(testing))
    with pytest.raises(AttributeError, match="no attribute 'check_everything'"):
        testing.check_everything  # noqa: B018


def test_clauses_say_what_is_broken():
    require(condition=True, clause="fine")
    with breaks("broken clause: two is three"):
        require(2 == 3, "two is three")  # noqa: PLR0133
    with must_raise(ValueError, "fine"):
        raise ValueError
    with breaks("nothing was raised"), must_raise(ValueError, "it fails"):
        pass
    with (
        breaks("expected ValueError, got KeyError: 'x'"),
        must_raise(ValueError, "it fails"),
    ):
        raise KeyError("x")


# Batch plans


def test_batch_plan_keeps_the_contract():
    check_batch_plan(BatchPlan)


def plan_that(change):
    """A batch plan whose parts go through a function."""

    @dataclasses.dataclass(frozen=True)
    class Broken(BatchPlan):
        def for_rank(self, rank):
            return change(self, rank, BatchPlan.for_rank(self, rank))

    return Broken


def drop_the_rest(plan, rank, part):
    size = plan.global_batch // plan.world_size // plan.num_micro_batches
    sizes = (size,) * plan.num_micro_batches
    return dataclasses.replace(part, sizes=sizes, start=rank * sum(sizes))


def give_the_rest_to_rank_0(plan, rank, part):
    rest = plan.global_batch % (plan.world_size * plan.num_micro_batches)
    each = plan.global_batch // (plan.world_size * plan.num_micro_batches)
    sizes = [each] * plan.num_micro_batches
    start = rank * sum(sizes) + (rest if rank else 0)
    sizes[0] += 0 if rank else rest
    return RankBatch(sizes=tuple(sizes), weights=part.weights, start=start)


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        (drop_the_rest, "add up to the global batch"),
        (give_the_rest_to_rank_0, "differ by one row"),
        (
            lambda p, r, part: dataclasses.replace(part, start=0),
            "each row is read once",
        ),
        (
            lambda p, r, part: dataclasses.replace(
                part, weights=(1 / len(part.sizes),) * len(part.sizes)
            ),
            "are the mean over the global",
        ),
        (
            lambda p, r, part: dataclasses.replace(
                part, sizes=(*part.sizes, 0), weights=(*part.weights, 0.0)
            ),
            "same number of micro-batches",
        ),
    ],
    ids=range(5),
)
def test_broken_batch_plan_is_found(change, clause):
    with breaks(clause):
        check_batch_plan(plan_that(change))


def test_batch_plan_that_takes_anything_is_found():
    class Lax(BatchPlan):
        def __post_init__(self):
            pass

    with breaks("fewer rows than micro-batches is refused"):
        check_batch_plan(Lax)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """The suites make listeners fail; that is logged, and not of interest here."""
    caplog.set_level(logging.CRITICAL)


# Cluster descriptions


class Lossy(ClusterSpec):
    def to_yaml(self):
        return "\n".join(
            line for line in super().to_yaml().splitlines() if "cores" not in line
        )


class LaxSpec(ClusterSpec):
    @classmethod
    def from_yaml(cls, text, source="cluster"):
        lines = [line for line in text.splitlines() if not line.startswith("colour")]
        return super().from_yaml("\n".join(lines), source)


@pytest.mark.parametrize(
    ("spec_type", "clause"),
    [(Lossy, "read back as an equal object"), (LaxSpec, "an unknown key is refused")],
)
def test_broken_cluster_spec_is_found(spec_type, clause):
    spec = local_cluster()
    with breaks(clause):
        check_cluster_spec(spec_type(name=spec.name, nodes=spec.nodes))


# Checkpointers


class Pickling:
    """What a hasty checkpointer looks like: one file, overwritten in place."""

    def __init__(self, folder):
        self.path = Path(folder) / "state.pt"

    def save(self, step, state):
        state = {k: getattr(v, "state_dict", lambda v=v: v)() for k, v in state.items()}
        torch.save((step, state), self.path)
        return DurableSave(step)

    def restore(self, into, step=None):
        if not self.path.exists():
            raise CheckpointError(str(self.path))
        saved_step, state = torch.load(self.path, weights_only=False)
        for key, target in into.items():
            if hasattr(target, "load_state_dict"):
                target.load_state_dict(state[key])
            elif isinstance(target, torch.Tensor):
                target.copy_(state[key])
            else:
                target.update(state[key])
        return saved_step

    def flush(self, deadline_s=None):
        return True

    def latest(self):
        return (
            torch.load(self.path, weights_only=False)[0] if self.path.exists() else None
        )


class Late(DcpCheckpointer):
    """Saves at the next call, when the state has changed."""

    def save(self, step, state):
        self.later = (step, state)
        return DurableSave(step)

    def flush(self, deadline_s=None):
        if hasattr(self, "later"):
            super().save(*self.later)
        return True


class Trusting(DcpCheckpointer):
    """Reads what is there without looking at checksums."""

    def _verify(self, checkpoint):
        pass


class Lenient(DcpCheckpointer):
    """Leaves out what it cannot hold."""

    def save(self, step, state):
        try:
            return super().save(max(step, 0), state)
        except TypeError:
            return DurableSave(step)


class Single(DcpCheckpointer):
    """Lets every rank save alone."""

    def save(self, step, state):
        if dist.is_initialized() and dist.get_rank() == 0:
            state = {**state, "data": {"position": 0}}
        return super().save(step, state)


class Curt(DcpCheckpointer):
    """Tells only the first reason of a refusal."""

    def restore(self, into, step=None, *, strict=True):
        try:
            return super().restore(into, step, strict=strict)
        except CheckpointError as error:
            error.mismatches = error.mismatches[:1]
            raise


class Strict(DcpCheckpointer):
    """Restores nothing unless all fits."""

    def restore(self, into, step=None, *, strict=True):
        return super().restore(into, step)


class Silent(DcpCheckpointer):
    """Keeps to itself what it has not restored."""

    def restore(self, into, step=None, *, strict=True):
        dcp_logger = logging.getLogger("drivetrain_core.services._dcp_checkpointer")
        dcp_logger.disabled = True
        try:
            return super().restore(into, step, strict=strict)
        finally:
            dcp_logger.disabled = False


class Nameless(DcpCheckpointer):
    def latest(self):
        found = Folder(self._folder.root, None).committed()
        return max((c.serial for c in found), default=None)


@pytest.mark.parametrize(
    ("checkpointer_type", "clause"),
    [
        (Pickling, "saves|a checkpointer raises no other error"),
        (Late, "equal to the bit after restore"),
        (Trusting, "was damaged|damage to"),
        (Lenient, "a negative step is refused"),
        (Curt, "a refusal tells of all that does not fit"),
        (Strict, "a checkpointer raises no other error"),
        (Silent, "what is not restored is logged as a warning"),
        (Nameless, "latest.. is the step that was saved"),
    ],
)
def test_broken_checkpointer_is_found(checkpointer_type, clause):
    with breaks(clause):
        check_checkpointer(checkpointer_type, world_size=1)


@pytest.mark.slow
def test_checkpointer_that_forgets_other_ranks_is_found():
    with breaks("rank . of 2 failed"):
        check_checkpointer(Single, world_size=2)


# Process groups


class Solitary:
    """Makes each rank a world of its own."""

    def __call__(self, store, rank, world_size, timeout):
        store = dist.PrefixStore(f"{rank}/", store)
        return TorchProcessGroupFactory("gloo")(store, 0, 1, timeout)


class Careless(TorchProcessGroupFactory):
    """Makes its group the default one."""

    def __call__(self, store, rank, world_size, timeout):
        group = super().__call__(store, rank, world_size, timeout)
        if not dist.is_initialized():
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("default/", store),
                rank=rank,
                world_size=world_size,
            )
        return group


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "world_size", "clause"),
    [
        (Solitary, 2, "the rank and the world size that were asked for"),
        (Careless, 1, "leaves the default group as it is"),
    ],
)
def test_broken_process_group_factory_is_found(factory, world_size, clause):
    with breaks(clause):
        check_process_group_factory(factory, world_sizes=[world_size])


class SharedStore:
    """A job of threads, which all have one store."""

    def __init__(self):
        self.store = dist.HashStore()

    @contextlib.contextmanager
    def open(self):
        yield self.store


class StoreOfItsOwn(SharedStore):
    @contextlib.contextmanager
    def open(self):
        yield dist.HashStore()


class NoStore(SharedStore):
    def open(self):
        return contextlib.nullcontext()


class Forgetful(SharedStore):
    @contextlib.contextmanager
    def open(self):
        yield self.store
        self.store = dist.HashStore()


def test_job_store_keeps_the_contract():
    check_job_store(SharedStore())


@pytest.mark.parametrize(
    ("service", "clause"),
    [
        (NoStore, "is given a store"),
        (StoreOfItsOwn, "where another value stands"),
        (Forgetful, "outlives who has set it"),
        (object, "has open"),
    ],
)
def test_broken_job_store_is_found(service, clause):
    with breaks(clause):
        check_job_store(service())
