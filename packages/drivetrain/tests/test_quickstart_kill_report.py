"""Steps, samples and losses, counted by what the training function itself wrote."""

import json

import pytest

from drivetrain.quickstart._kill_report import Kill, count
from drivetrain.quickstart._steps_log import Line, StepsLog, StepsReader

BATCH = 4


class Story:
    """Writes what two ranks do, one event a tenth of a second."""

    def __init__(self):
        self.lines, self.now_s = [], 0.0

    def write(self, what, step, world, rank, samples=(), loss=0.0):
        self.now_s += 0.1
        pid = 100 + rank + 10 * world
        line = Line(what, step, world, rank, pid, self.now_s, tuple(samples), loss)
        self.lines.append(line)

    def parts(self, step, world=1, ranks=(0, 1)):
        start = (step - 1) * BATCH
        for rank in ranks:
            samples = range(start + 2 * rank, start + 2 * rank + 2)
            self.write("part", step, world, rank, samples, loss=step + rank)

    def step(self, step, world=1):
        self.parts(step, world)
        for rank in (0, 1):
            self.write("counted", step, world, rank)

    def kill(self, step):
        self.now_s += 0.1
        return Kill(111, 1, step, self.now_s)

    def count(self, num_steps, kill=None):
        return count(self.lines, num_steps=num_steps, global_batch=BATCH, kill=kill)


def with_a_kill():
    story = Story()
    for step in (1, 2):
        story.step(step)
    story.parts(3)
    kill = story.kill(3)
    for step in (3, 4):
        story.step(step, world=2)
    return story, kill


def test_undisturbed_training_loses_nothing():
    story = Story()
    for step in range(1, 6):
        story.step(step)
    found = story.count(5)
    assert (found.num_steps, found.steps_lost, found.steps_again) == (5, 0, 0)
    assert (found.samples_lost, found.samples_repeated) == (0, 0)
    assert found.pause_s is None
    assert found.step_s == pytest.approx(0.4)
    assert found.losses == tuple(2 * step + 1.0 for step in range(1, 6))


def test_step_in_flight_is_made_again_and_counts_once():
    story, kill = with_a_kill()
    found = story.count(4, kill)
    assert (found.num_steps, found.steps_lost, found.steps_again) == (4, 0, 1)
    assert (found.samples_lost, found.samples_repeated) == (0, 0)
    assert found.losses == (3.0, 5.0, 7.0, 9.0)
    assert found.pause_s == pytest.approx(0.3)


def test_end_of_the_step_before_told_after_the_kill_is_no_recovery():
    story = Story()
    story.step(1)
    story.parts(2)
    kill = story.kill(2)
    story.write("counted", 1, 1, 0)
    assert story.count(2, kill).pause_s is None
    story.step(2, world=2)
    assert story.count(2, kill).pause_s == pytest.approx(0.4)


def test_step_that_counted_and_is_made_again_is_lost():
    story, kill = with_a_kill()
    story.step(2, world=2)
    found = story.count(4, kill)
    assert (found.steps_lost, found.steps_again) == (1, 1)


def test_sample_in_no_step_is_lost_and_one_in_two_is_repeated():
    story = Story()
    story.step(1)
    story.parts(2, ranks=[0])
    story.write("part", 2, 1, 1, [0, 7])
    story.write("counted", 2, 1, 0)
    found = story.count(2)
    assert (found.samples_lost, found.samples_repeated) == (1, 1)


def test_steps_that_never_came_are_missing():
    story, kill = with_a_kill()
    found = story.count(6, kill)
    assert (found.num_steps, found.samples_lost) == (4, 2 * BATCH)
    assert found.losses[4:] == (0.0, 0.0)


class Step:
    number, epoch, rank = 3, 1, 0


def test_lines_are_read_once_and_a_torn_one_when_it_is_whole(tmp_path):
    log, reader = StepsLog(tmp_path), StepsReader(tmp_path)
    log.write("part", Step, samples=[4, 5], loss=0.5)
    (line,) = reader.news()
    assert (line.what, line.step, line.samples, line.loss) == ("part", 3, (4, 5), 0.5)
    log.write("counted", Step)
    (path,) = tmp_path.glob("rank0-*.jsonl")
    text = path.read_text()
    path.write_text(text[:-5])
    assert list(reader.news()) == []
    path.write_text(text)
    (line,) = reader.news()
    assert line.what == "counted"
    assert json.loads(text.splitlines()[1])["pid"] == line.pid
    assert list(reader.news()) == []
