"""What a lost step has done is undone."""

import pytest
import torch
from torch import nn

from drivetrain_core.services import pack_state
from drivetrain_elastic import Schedule
from drivetrain_elastic._training._rollback import (
    BufferCopies,
    GeneratorState,
    StateCopy,
)
from drivetrain_elastic._training._state_transfer import (
    is_movable,
    specs_of,
    targets_in,
)
from drivetrain_elastic._training._training_state import Training


def with_buffers(**buffers):
    module = nn.Module()
    for name, one in buffers.items():
        module.register_buffer(name, one)
    return nn.ModuleList([nn.Linear(2, 1), module]), module


BUFFERS = {
    "floats": torch.ones(3),
    "count": torch.tensor(4),
    "flag": torch.tensor(True),
    "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
    "empty": torch.ones(0),
    "conj": torch.ones(2, dtype=torch.cfloat).conj(),
    "column": torch.ones(3, 4)[:, 1],
    "large": torch.ones(1 << 17),
}


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("how", ["in place", "another one", "none", "not at all"])
def test_buffer_is_put_back_to_what_it_was_when_the_step_began(name, how):
    model, module = with_buffers(**{key: one.clone() for key, one in BUFFERS.items()})
    copies = BufferCopies(model)
    buffer = getattr(module, name)
    for _ in range(3):
        # A step that counts, and one that is lost.
        buffer.logical_not_() if name == "flag" else buffer.add_(1)
        before = buffer.clone()
        copies.keep()
        if how == "in place":
            buffer.zero_()
        elif how != "not at all":
            setattr(module, name, torch.zeros(7) if how == "another one" else None)
        copies.put_back()
        assert getattr(module, name) is buffer
        assert torch.equal(buffer, before)


def test_buffers_that_cannot_be_written_to_are_left_alone():
    sparse, shared = torch.eye(3).to_sparse(), torch.ones(1).expand(5)
    model, module = with_buffers(sparse=sparse, shared=shared, none=None)
    copies = BufferCopies(model)
    copies.keep()
    module.none = torch.ones(1)
    module.register_buffer("late", torch.ones(1))
    copies.put_back()
    assert module.sparse is sparse
    assert module.shared is shared
    assert module.none is None
    assert not hasattr(module, "late")
    assert not is_movable(sparse)
    assert not is_movable(module.none)


def test_buffer_that_does_not_change_is_copied_once():
    model, module = with_buffers(large=torch.ones(1 << 17), small=torch.ones(1))
    copies = BufferCopies(model)
    copies.keep()
    (copy,) = [copy for _, copy in copies._large]
    version = copy._version
    copies.keep()
    assert copy._version == version
    module.large.add_(1)
    copies.keep()
    assert copy._version == version + 1


class Loads:
    """Counts how often it is given a state."""

    num_loads = value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.num_loads += 1
        self.value = state["value"]


def test_only_what_has_changed_is_given_its_state_again():
    one, other, plain = Loads(), Loads(), {"at": [1, {"best": 2.0}]}
    copy = StateCopy({"one": one, "other": other, "plain": plain})
    one.value = 5
    plain["at"][1]["best"] = 3.0
    state = {"one": one, "other": other, "plain": plain}
    copy.put_back(state)
    assert (one.value, one.num_loads, other.num_loads) == (0, 1, 0)
    assert state["plain"] is plain
    assert plain == {"at": [1, {"best": 2.0}]}


def test_generator_is_restored_as_it_was_saved():
    random, other = torch.Generator().manual_seed(1), torch.Generator()
    packed = pack_state({"random": GeneratorState(random)})
    saved = {name: one.clone() for name, one in packed.tensors.items()}
    drawn = torch.rand(3, generator=random)
    state = {"random": GeneratorState(other)}
    targets, finish = targets_in(state, packed.entries, specs_of(packed))
    for name, one in targets.items():
        one.copy_(saved[name])
    for do in finish:
        do()
    assert torch.equal(torch.rand(3, generator=other), drawn)


def make_training(**state):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = Schedule(num_samples=8, global_batch=4, shuffle=False)
    return Training(model, optimizer, state, schedule), model, optimizer


def test_nothing_is_undone_where_no_step_was_lost():
    training, model, optimizer = make_training(notes={"n": 0})
    training.keep()
    model(torch.rand(4, 2))
    training.apply()
    # Its world is left after the step.
    training.lose()
    optimizer.param_groups[0]["lr"] = 0.1
    training.resume()
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert model[1].num_batches_tracked == 1


def test_repeated_step_begins_as_the_lost_one_did():
    notes = {"n": 0}
    training, model, optimizer = make_training(notes=notes)
    weight = model[0].weight.detach().clone()
    for _ in range(2):
        notes["n"] = 1  # before the step, in each try
        training.keep()
        model(torch.rand(4, 2))
        training.lose()
        notes["n"] += 5
        optimizer.param_groups[0]["lr"] *= 0.1
        model[0].weight.data.zero_()
        training.resume()
        assert notes == {"n": 1}
        assert optimizer.param_groups[0]["lr"] == 0.5
        assert torch.equal(model[0].weight, weight)
        assert model[1].num_batches_tracked == 0
