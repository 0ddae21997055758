"""Schedules that really run: on torch's messages, and on the engine."""

import functools
import json
import math
import os
import re

import pytest
import torch
import torch.distributed as dist

from drivetrain_comm.compiler import (
    COLLECTIVES,
    Schedule,
    ScheduleError,
    ScheduleRunner,
    Transfer,
    compile_schedule,
    degraded,
    full_mesh,
    load_schedule,
    schedule_of,
    star,
)
from drivetrain_core import DistributedError
from drivetrain_testing import RankError, run_ranks

GRAPH = degraded(full_mesh(3, 1e9), "r0", "r1", 0.3)


@functools.cache
def compiled(collective):
    found = compile_schedule(GRAPH, collective, 10**5, most_pieces=4, budget_s=math.inf)
    return found.schedule


def results(schedules):
    rank, size = dist.get_rank(), dist.get_world_size()
    found = {}
    for schedule in schedules:
        for in_rounds in (False, True):
            runner = ScheduleRunner(schedule, in_rounds=in_rounds)
            for num in (0, 5, 10_007):
                for dtype in (torch.float32, torch.bfloat16, torch.int64):
                    x = (torch.arange(num) % 7 + 10 * rank).to(dtype)
                    every = [
                        (torch.arange(num) % 7 + 10 * r).to(dtype) for r in range(size)
                    ]
                    runner.run(x)
                    total = sum(every[1:], every[0])
                    parts = [runner.part(num, r) for r in range(size)]
                    wanted = {
                        "all_reduce": total,
                        "broadcast": every[schedule.owners[0]],
                    }.get(schedule.collective)
                    if wanted is not None:
                        same = torch.equal(x, wanted)
                    elif schedule.collective == "all_gather":
                        same = all(
                            torch.equal(x[p], every[r][p])
                            for r in range(size)
                            for p in parts[r]
                        )
                    else:
                        same = all(torch.equal(x[p], total[p]) for p in parts[rank])
                    found[schedule.collective, in_rounds, num, str(dtype)] = same
    return found


def test_schedules_run_over_messages_of_torch():
    for found in run_ranks(results, 3, [compiled(name) for name in COLLECTIVES]):
        assert len(found) == 4 * 2 * 3 * 3
        assert [key for key, same in found.items() if not same] == []


def operations(schedule):
    rank = dist.get_rank()
    runner = ScheduleRunner(schedule)
    found = {}
    for op in ("sum", "avg", "product", "min", "max"):
        x = torch.tensor([1.0 + rank, 4.0 - rank, 2.0])
        runner.run(x, op)
        found[op] = x.tolist()
    grid = torch.full((2, 3), float(rank), requires_grad=True)
    runner.run(grid)
    found["grid"] = grid.tolist()
    return found


def in_another_order():
    programs = (
        "receive 1 0, send 2 0, send 1 1, receive 2 2",
        "receive 0 1, send 2 1, send 0 0, receive 2 2",
        "receive 0 0, receive 1 1, send 0 2, send 1 2",
    )
    text = json.dumps(
        {
            "drivetrain_schedule": 1,
            "name": "x",
            "collective": "all_gather",
            "owners": [1, 0, 2],
            "programs": [p.split(", ") for p in programs],
        }
    )
    schedule = Schedule.from_json(text)
    x = torch.full((3,), -1.0)
    x[schedule.owners.index(dist.get_rank())] = dist.get_rank()
    ScheduleRunner(schedule).run(x)
    return x.tolist()


def test_programs_in_an_order_of_their_own_do_not_wait_for_ever():
    assert run_ranks(in_another_order, 3) == [[1.0, 0.0, 2.0]] * 3


def test_operations_are_those_of_torch():
    found = run_ranks(operations, 3, compiled("all_reduce"))
    assert found[0] == found[1] == found[2]
    assert found[0]["sum"] == [6.0, 9.0, 6.0]
    assert found[0]["avg"] == [2.0, 3.0, 2.0]
    assert found[0]["product"] == [6.0, 24.0, 8.0]
    assert found[0]["min"] == [1.0, 2.0, 2.0]
    assert found[0]["max"] == [3.0, 4.0, 2.0]
    assert found[0]["grid"] == [[3.0] * 3] * 2


def same_bits(schedule):
    torch.manual_seed(dist.get_rank())
    x = torch.randn(4001)
    one, other = x.clone(), x.clone()
    ScheduleRunner(schedule).run(one)
    ScheduleRunner(schedule, in_rounds=True).run(other)
    return one.numpy().tobytes(), other.numpy().tobytes()


def test_results_are_the_same_bit_by_bit_on_all_ranks_and_each_time():
    found = run_ranks(same_bits, 3, compiled("all_reduce"))
    assert len({bits for pair in found for bits in pair}) == 1


def refusals(schedule):
    said = []
    runner = ScheduleRunner(schedule)
    for vector, op in ((torch.ones(4, 4).t()[:2], "sum"), (torch.ones(4), "mean")):
        try:
            runner.run(vector, op)
        except ScheduleError as error:
            said.append(str(error))
    for make in (
        lambda: runner.run(torch.ones(4).int(), "avg"),
        lambda: ScheduleRunner("x"),
        lambda: runner.run(torch.ones(4) * 1j, "min"),
    ):
        try:
            make()
        except ScheduleError as error:
            said.append(str(error))
    two = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        try:
            ScheduleRunner(schedule, two)
        except ScheduleError as error:
            said.append(str(error))
    return said


def test_what_cannot_run_is_refused_before_anything_is_sent():
    said = run_ranks(refusals, 3, compiled("all_reduce"))[0]
    assert "the vector must be contiguous" in said[0]
    assert "op must be one of sum, avg" in said[1]
    assert "an average of torch.int32 is not defined" in said[2]
    assert "must be a Schedule, got str; load_schedule reads a file" in said[3]
    assert "the min of torch.complex64 is not defined" in said[4]
    assert "is for 3 ranks, and the group has 2" in said[5]


def die_in_between(schedule):
    runner = ScheduleRunner(schedule)
    runner.run(torch.ones(100))
    if dist.get_rank() == 2:
        os._exit(3)
    runner.run(torch.ones(1 << 20))


def test_dead_rank_is_an_error_for_the_others():
    with pytest.raises(RankError):
        run_ranks(die_in_between, 3, compiled("all_reduce"), timeout_s=40.0)


def on_the_engine(path, via_environment):
    from drivetrain_comm import _enable

    if via_environment:
        os.environ["DRIVETRAIN_COMM_SCHEDULE"] = path
        _enable.enable()
    else:
        _enable.enable(schedule=path)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.arange(1000.0) * (rank + 1)
    dist.all_reduce(x)
    choice = dist.group.WORLD.choose(4000)
    two = dist.new_group([0, 1])
    y = torch.ones(3)
    if rank < 2:
        dist.all_reduce(y, group=two)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(3):
        model(torch.ones(2, 4) * (rank + 1)).sum().backward()
    grad = model.module.weight.grad[0, 0].item()
    dist.destroy_process_group()
    return str(choice), x.tolist(), y.tolist(), grad


@pytest.mark.parametrize("via_environment", [False, True])
def test_schedule_of_a_file_reduces_gradients(tmp_path, via_environment):
    path = tmp_path / "schedule.json"
    path.write_text(compiled("all_reduce").to_json())
    arguments = (str(path), via_environment)
    found = run_ranks(on_the_engine, 3, *arguments, process_group=False)
    for rank, (choice, x, y, grad) in enumerate(found):
        assert choice == "schedule"
        assert x == [6.0 * i for i in range(1000)]
        assert y == ([2.0] * 3 if rank < 2 else [1.0] * 3)
        assert grad == pytest.approx(3 * 2 * 2.0)


def with_different_files(paths):
    from drivetrain_comm import _enable

    _enable.enable(schedule=paths[int(os.environ["RANK"])])
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1000))


@pytest.mark.slow
def test_ranks_with_different_schedules_are_told(tmp_path):
    paths = [tmp_path / name for name in ("one", "other", "third")]
    other = compile_schedule(star([1e9] * 3), "all_reduce", 100, budget_s=0.0).schedule
    for path, schedule in zip(
        paths, [compiled("all_reduce"), other, other], strict=True
    ):
        path.write_text(schedule.to_json())
    with pytest.raises(RankError, match=r"(?s)schedule [0-9a-f]{16}"):
        run_ranks(with_different_files, 3, list(map(str, paths)), process_group=False)


def test_files_without_an_all_reduce_are_refused(tmp_path):
    path = tmp_path / "schedule.json"
    with pytest.raises(ScheduleError, match="cannot be read"):
        load_schedule(path)
    path.write_text(compiled("broadcast").to_json())
    with pytest.raises(ScheduleError, match="must be an all_reduce, and is broadcast"):
        load_schedule(path)
    wrong = schedule_of("x", "all_reduce", 2, [0], [Transfer(1, 0, 0, reduces=True)])
    path.write_text(wrong.to_json())
    where = re.escape(str(path))
    with pytest.raises(ScheduleError, match=f"{where}: x is no all_reduce: chunk 0"):
        load_schedule(path)


def test_schedule_and_algorithm_exclude_each_other():
    from drivetrain_comm._settings import Settings

    with pytest.raises(DistributedError, match="schedule must be left out"):
        Settings(schedule="x.json", algorithm="ring")
