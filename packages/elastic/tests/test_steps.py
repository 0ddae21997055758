"""Survivors agree on the step in flight, whatever the moment at which a rank died."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import DistributedError
from drivetrain_elastic.decisions.steps import Action, Do, Progress, resolve

# What a rank does in a step, in this order. "Ended" waits for all ranks to have entered.
PHASES = ["compute", "enter reduction", "reduced", "apply"]


class Rank:
    """One rank: its model is the list of updates that it has applied."""

    def __init__(self):
        self.model, self.step, self.phase = [], 1, 0

    def can_move(self, ranks):
        if PHASES[self.phase] == "reduced":
            return all((r.step, r.phase) >= (self.step, self.phase) for r in ranks)
        return True

    def move(self):
        if PHASES[self.phase] == "apply":
            self.model.append(self.step)
        self.phase += 1
        if self.phase == len(PHASES):
            self.step, self.phase = self.step + 1, 0


def carry_out(ranks, resolution):
    for rank, action in zip(ranks, resolution.actions, strict=True):
        if action.do == Do.TAKE_STATE:
            source = ranks[action.source]
            assert len(source.model) == resolution.step
            rank.model = list(source.model)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    data=st.data(),
    num=st.integers(2, 6),
    num_moves=st.integers(0, 120),
)
def test_survivors_agree_whatever_the_moment(data, num, num_moves):
    ranks = [Rank() for _ in range(num)]
    for _ in range(num_moves):
        able = [rank for rank in ranks if rank.can_move(ranks)]
        data.draw(st.sampled_from(able)).move()
    before = max(len(rank.model) for rank in ranks)
    gone = data.draw(st.sets(st.integers(0, num - 1), max_size=num - 1))
    alive = [rank for at, rank in enumerate(ranks) if at not in gone]
    num_new = data.draw(st.integers(0, 2))
    news = [Rank() for _ in range(num_new)]
    world = alive + news
    progress = [Progress(len(one.model)) for one in alive]
    progress += [Progress(0, is_new=True) for _ in news]
    resolution = resolve(progress)
    carry_out(world, resolution)
    # No step was left out or applied twice, and all ranks are alike.
    assert all(r.model == list(range(1, resolution.step + 1)) for r in world)
    # What only the dead had applied may be made again; nothing that a survivor had is.
    kept = max(len(rank.model) for rank in alive)
    assert before - 1 <= resolution.step == kept


def test_states_come_from_the_same_node_and_from_many():
    progress = [Progress(3, node="a"), Progress(3, node="b")]
    progress += [Progress(2, node=node) for node in "bab"]
    progress += [Progress(0, is_new=True, node="a")]
    _, actions = resolve(progress)
    assert [one.source for one in actions] == [-1, -1, 1, 0, 1, 0]


def test_world_of_new_ranks_only_is_an_error():
    with pytest.raises(DistributedError, match="no rank of this world has the state"):
        resolve([Progress(0, is_new=True)])


def test_part_that_no_rank_has_as_far_as_others_is_an_error():
    progress = [Progress(3, part=0), Progress(2, part=1)]
    with pytest.raises(DistributedError, match="no rank has part 1 of the state"):
        resolve(progress)


def test_nothing_in_flight_is_nothing_to_do():
    assert resolve([Progress(4)] * 2) == (4, (Action(Do.NOTHING),) * 2)


def test_rank_that_is_behind_or_of_an_older_world_takes_the_state():
    progress = [Progress(7, epoch=2), Progress(6, epoch=2), Progress(9, epoch=1)]
    step, actions = resolve(progress)
    assert step == 7
    assert [one.do for one in actions] == [Do.NOTHING, Do.TAKE_STATE, Do.TAKE_STATE]
