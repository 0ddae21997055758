"""`select` on two ranks: both decide alike, whatever each of them measured."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_testing import run_ranks

OTHER, PLAIN = "backend:eager_noexcept", "backend:eager"


def on_a_rank(folder):
    import os
    import shutil

    from drivetrain_kernels import SelectionError, select
    from drivetrain_kernels.selector import _search
    from drivetrain_kernels.selector._race import Timing

    rank = dist.get_rank()
    # Each keeps decisions where the other does not see them.
    os.environ["DRIVETRAIN_CACHE_DIR"] = f"{folder}/{rank}"
    x = torch.ones(2, 4)
    mine = {}

    def race(samplers, **_):
        return {
            name: Timing(step_s=r, ratio=r, low=r - 0.01, high=r + 0.01, num_rounds=7)
            for name in samplers
            for r in [mine.get(name, 1.0)]
        }

    _search.race = race

    def choose(ratios, cache=False, width=4):
        mine.clear()
        mine.update(ratios[rank])
        model = torch.nn.Linear(width, width)
        names = [OTHER, PLAIN]
        batches = [torch.ones(2, 4)]
        group = dist.group.WORLD
        found = select(model, batches, candidates=names, group=group, cache=cache)
        return found.choice, found.from_cache

    chosen = [
        choose([{OTHER: 0.5, PLAIN: 0.8}, {OTHER: 1.2, PLAIN: 0.7}]),
        choose([{OTHER: 0.5}, {OTHER: 1.2}]),
        choose([{OTHER: 0.5}, {OTHER: 0.6}], cache=True),
    ]
    if rank:
        # What the first rank has kept is what counts.
        shutil.rmtree(f"{folder}/{rank}/select")
    chosen.append(choose([{}, {}], cache=True))
    try:
        choose([{}, {}], width=4 + rank)
        message = ""
    except SelectionError as error:
        message = str(error)
    return chosen, message, float(x.sum())


@pytest.mark.slow
def test_ranks_decide_alike_from_the_slowest_and_the_first_rank_s_record(tmp_path):
    (first, told, _), (second, own, _) = run_ranks(on_a_rank, 2, str(tmp_path))
    assert first == second
    assert first == [(PLAIN, False), ("eager", False), (OTHER, False), (OTHER, True)]
    assert told.startswith("rank 1 could not select: SelectionError: the target does")
    assert own.startswith("the target does not run on the example batches")
