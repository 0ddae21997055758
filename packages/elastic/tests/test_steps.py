"""Survivors agree on the step in flight, whatever the moment at which a rank died."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import DistributedError
from drivetrain_elastic.decisions.steps import Action, Do, Progress, resolve

# What a rank does in a step, in this order. "Ended" waits for all ranks to have entered.
PHASES = ["compute", "enter reduction", "reduced", "apply", "enter vote", "voted"]
VOTE = ("vote", "voted")


class Rank:
    """One rank: its model is the list of updates that it has applied.

    Args:
        keeps: Whether it keeps the gradients of a step until it has those of the next one,
            and makes no votes.
    """

    def __init__(self, keeps=False):
        self.phases = [one for one in PHASES if not (keeps and one.endswith(VOTE))]
        self.keeps = keeps
        self.model, self.gradients = [], None
        self.step, self.phase = 1, 0
        self.reduced = 0

    def can_move(self, ranks):
        name = self.phases[self.phase]
        if name in {"reduced", "voted"}:
            return all((r.step, r.phase) >= (self.step, self.phase) for r in ranks)
        return True

    def move(self):
        name = self.phases[self.phase]
        if name == "compute" and not self.keeps:
            # From here on the old gradients are gone.
            self.gradients = None
        elif name == "reduced":
            self.gradients, self.reduced = self.step, self.step
        elif name == "apply":
            self.model.append(self.gradients)
        self.phase += 1
        if self.phase == len(self.phases):
            self.step, self.phase = self.step + 1, 0

    def progress(self):
        return Progress(applied=len(self.model), reduced=self.reduced)


def carry_out(ranks, resolution):
    for rank, action in zip(ranks, resolution.actions, strict=True):
        if action.do == Do.TAKE_GRADIENTS:
            given = ranks[action.source].gradients
            assert given == resolution.step
            rank.gradients = given
        if action.do in {Do.TAKE_GRADIENTS, Do.APPLY}:
            assert rank.gradients == resolution.step
            rank.model.append(rank.gradients)
    for rank, action in zip(ranks, resolution.actions, strict=True):
        if action.do == Do.TAKE_STATE:
            rank.model = list(ranks[action.source].model)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    data=st.data(),
    num=st.integers(2, 6),
    num_moves=st.integers(0, 120),
    keeps=st.booleans(),
)
def test_survivors_agree_whatever_the_moment(data, num, num_moves, keeps):
    ranks = [Rank(keeps) for _ in range(num)]
    for _ in range(num_moves):
        able = [rank for rank in ranks if rank.can_move(ranks)]
        data.draw(st.sampled_from(able)).move()
    before = max(len(rank.model) for rank in ranks)
    gone = data.draw(st.sets(st.integers(0, num - 1), max_size=num - 1))
    alive = [rank for at, rank in enumerate(ranks) if at not in gone]
    num_new = data.draw(st.integers(0, 2))
    news = [Rank() for _ in range(num_new)]
    world = alive + news
    progress = [one.progress() for one in alive]
    progress += [Progress(0, 0, is_new=True) for _ in news]
    resolution = resolve(progress)
    carry_out(world, resolution)
    # No step was left out or applied twice, and all ranks are alike.
    assert all(r.model == list(range(1, resolution.step + 1)) for r in world)
    # What only the dead had applied may be made again; nothing that a survivor had is.
    kept = max(len(rank.model) for rank in alive)
    assert before - 1 <= resolution.step == kept


def test_gradients_come_from_the_same_node_and_from_many():
    progress = [Progress(3, 3, node="a"), Progress(2, 3, node="b")]
    progress += [Progress(2, 2, node=node) for node in "bab"]
    progress += [Progress(0, 0, is_new=True, node="a")]
    _, actions = resolve(progress)
    assert [one.source for one in actions] == [-1, -1, 1, 0, 1, 0]


def test_world_of_new_ranks_only_is_an_error():
    with pytest.raises(DistributedError, match="no rank of this world has the state"):
        resolve([Progress(0, 0, is_new=True)])


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (
            Progress(1, 1),
            "rank 1 has applied step 1 and reduced step 1 while another rank has step 3",
        ),
        (Progress(3, 2), "rank 1 has applied step 3 and reduced step 2"),
        (Progress(1, 3), "rank 1 has applied step 1 and reduced step 3"),
    ],
)
def test_ranks_that_cannot_have_come_so_far_together_are_an_error(one, says):
    with pytest.raises(DistributedError, match=says):
        resolve([Progress(2, 3), one])


def test_nothing_in_flight_is_nothing_to_do():
    assert resolve([Progress(4, 4)] * 2) == (4, (Action(Do.NOTHING),) * 2)


def test_rank_takes_the_state_where_an_update_has_spent_its_gradients():
    first = Progress(applied=7, reduced=7, is_spent=True)
    step, actions = resolve([first, Progress(applied=6, reduced=6)])
    assert (step, [one.do for one in actions]) == (7, [Do.NOTHING, Do.TAKE_STATE])
