"""Kills for want of memory are counted in groups of both versions."""

import pytest

from drivetrain_health.diagnosis import count_oom_kills


@pytest.fixture
def group(tmp_path):
    """Makes a process in a group, with the file that counts."""

    def make(membership, name, text):
        (tmp_path / "proc" / "7").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / "7" / "cgroup").write_text(membership)
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return count_oom_kills(7, root=tmp_path / "root", proc=tmp_path / "proc")

    return make


def test_kills_are_counted_in_either_version(group):
    new = "low 0\nhigh 3\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n"
    assert group("0::/job/a\n", "job/a/memory.events", new) == 2
    old = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    lines = "7:cpu,cpuacct:/x\n4:memory:/job/b\n0::/\n"
    assert group(lines, "memory/job/b/memory.oom_control", old) == 4


def test_group_of_the_host_is_the_root_inside_a_container(group):
    assert group("0::/../kubepods/pod1\n", "memory.events", "oom_kill 1\n") == 1


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill x\n", "oom_kill -1\n"])
def test_count_that_is_none_is_unknown(group, text):
    assert group("0::/a\n", "a/memory.events", text) is None


def test_process_that_is_gone_is_unknown(tmp_path):
    assert count_oom_kills(7, root=tmp_path, proc=tmp_path) is None


def test_real_group_counts_or_is_unknown():
    count = count_oom_kills()
    assert count is None or count >= 0
