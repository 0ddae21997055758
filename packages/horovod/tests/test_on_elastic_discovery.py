"""Hosts come, go and fail; each has one agent while it is there."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_on_elastic import check_steps, sizes_of

from drivetrain_core import DistributedError, ProgramError
from drivetrain_elastic import Master
from drivetrain_horovod.on_elastic import launch
from drivetrain_horovod.on_elastic.discovery import (
    Blacklist,
    FixedHosts,
    HostDiscoveryScript,
    HostManager,
    parse_hosts,
)
from drivetrain_horovod.on_elastic.elastic import HostUpdateResult
from drivetrain_horovod.on_elastic.launch import HostAgents, agent_command


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:0",
        "a:x",
        ":2",
        "a:2:3",
        "a b:1",
        "a:1\na:2",
        "-rf:1",
        "a:-1",
        "a:" + "9" * 5000,
    ],
)
def test_lines_that_are_no_hosts_are_refused(text):
    with pytest.raises(ProgramError, match="a line HOST:SLOTS for each host"):
        parse_hosts(text)


def test_script_that_fails_or_hangs_is_told():
    with pytest.raises(DistributedError, match="ended with 3: no cluster"):
        HostDiscoveryScript(
            "echo no cluster >&2; exit 3"
        ).find_available_hosts_and_slots()
    with pytest.raises(DistributedError, match=r"not ended within 0\.05 s"):
        HostDiscoveryScript("sleep 9", timeout_s=0.05).find_available_hosts_and_slots()


def test_script_that_prints_no_text_is_told():
    with pytest.raises(ProgramError, match="a line HOST:SLOTS"):
        HostDiscoveryScript(r"printf '\377'").find_available_hosts_and_slots()


def test_what_a_script_has_started_ends_with_it(tmp_path):
    note = tmp_path / "note"
    script = f"(sleep 0.5; touch {note}) | cat"
    with pytest.raises(DistributedError, match="not ended within"):
        HostDiscoveryScript(script, timeout_s=0.1).find_available_hosts_and_slots()
    with pytest.raises(DistributedError, match="not ended within"):
        HostDiscoveryScript("sleep 9", timeout_s=0.6).find_available_hosts_and_slots()
    assert not note.exists()


def test_hosts_that_have_failed_come_back_later_each_time():
    now = [0.0]
    bad = Blacklist((10.0, 25.0), clock=lambda: now[0], jitter=lambda: 1.0)
    waits = []
    for _ in range(4):
        bad.add("a")
        bad.add("a")
        began = now[0]
        while "a" in bad:
            now[0] += 1.0
        waits.append(now[0] - began)
    assert waits == [10.0, 20.0, 25.0, 25.0]
    assert "b" not in bad


@pytest.mark.parametrize("times", [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_cooldown_that_makes_no_sense_is_refused(times):
    with pytest.raises(ProgramError, match="a cool-down must"):
        Blacklist(times)


def test_changes_of_hosts_are_told():
    hosts = {"a": 1, "b": 1}

    class Hosts:
        def find_available_hosts_and_slots(self):
            return dict(hosts)

    manager = HostManager(Hosts(), Blacklist())
    assert manager.update_available_hosts() == HostUpdateResult.added
    assert manager.update_available_hosts() == HostUpdateResult.no_update
    hosts["a"] = 2
    assert manager.update_available_hosts() == HostUpdateResult.mixed
    del hosts["b"]
    assert manager.update_available_hosts() == HostUpdateResult.removed
    manager.blacklist("a")
    assert manager.is_blacklisted("a")
    manager.update_available_hosts()
    assert manager.current_hosts == {}


class FakeAgent:
    """Stands for the process of an agent."""

    def __init__(self, log, name):
        self.log, self.name, self.code = log, name, None

    def poll(self):
        return self.code

    def wait(self, timeout=None):
        if self.code is None and timeout is not None:
            raise subprocess.TimeoutExpired("agent", timeout)
        return self.code

    def terminate(self):
        self.log.append(f"end {self.name}")
        self.code = -15


class Story:
    def __init__(self, hosts, **blacklist):
        self.hosts, self.log, self.agents = hosts, [], {}
        self.fails = False
        manager = HostManager(self, Blacklist(**blacklist))
        self.all = HostAgents(manager, start=self.start, leave=self.leave)

    def find_available_hosts_and_slots(self):
        if self.fails:
            raise DistributedError
        return dict(self.hosts)

    def start(self, host, slots):
        self.log.append(f"start {host}:{slots}")
        self.agents[host] = FakeAgent(self.log, host)
        return self.agents[host]

    def leave(self, host):
        self.log.append(f"leave {host}")

    def look(self):
        del self.log[:]
        self.all.look()
        return self.log


def test_each_host_has_one_agent_and_leaves_when_it_is_not_named():
    story = Story({"a": 2, "b": 1})
    assert story.look() == ["start a:2", "start b:1"]
    assert story.look() == []
    del story.hosts["b"]
    assert story.look() == ["leave b"]
    assert story.look() == []
    story.agents["b"].code = 0
    assert story.look() == []
    assert story.all.exit_code is None
    story.hosts["a"] = 3
    assert story.look() == ["leave a"]
    story.agents["a"].code = 143
    # Other slots are another agent; that it was told to leave is no failure of its host.
    assert story.look() == ["start a:3"]


def test_host_whose_agent_fails_is_left_out_and_the_job_ends_with_the_last_one():
    story = Story({"a": 1, "b": 1})
    story.look()
    story.agents["a"].code = 1
    assert story.look() == []
    assert story.all.exit_code is None
    story.agents["b"].code = 7
    assert story.look() == []
    assert story.all.exit_code == 7


def test_host_comes_back_after_its_cooldown():
    now = [0.0]
    clock = {"clock": lambda: now[0], "jitter": lambda: 1.0}
    story = Story({"a": 1, "b": 1}, cooldown_s=(5.0, 5.0), **clock)
    story.look()
    story.agents["a"].code = 1
    assert story.look() == []
    now[0] = 6.0
    assert story.look() == ["start a:1"]


def test_hosts_stay_while_the_script_fails_and_all_end_with_the_job():
    story = Story({"a": 1, "b": 1})
    story.look()
    story.fails = True
    assert story.look() == []
    story.agents["a"].code = 0
    story.look()
    assert story.all.exit_code == 0
    story.agents["b"].code = 0
    story.all.close()
    assert "end b" not in story.log


def arguments(**options):
    given = {
        "min_np": None,
        "max_hosts": 8,
        "rdzv_endpoint": "m:1",
        "token_file": "token",
        "tls_ca": None,
        "on_host": "",
        "script": "train.py",
        "arguments": ["--lr", "a b"],
    }
    return argparse.Namespace(**{**given, **options})


def test_command_of_a_host_is_quoted_for_the_shell_that_takes_it_there():
    here = agent_command(arguments(), "a", 2)
    assert here[:4] == [sys.executable, "-m", "drivetrain_elastic.cli", "run"]
    assert here[-3:] == ["train.py", "--lr", "a b"]
    there = agent_command(arguments(on_host="ssh -p 22 {host}", tls_ca="ca"), "a", 2)
    assert there[:4] == ["ssh", "-p", "22", "a"]
    assert len(there) == 5
    assert there[4].endswith("train.py --lr 'a b'")
    assert "--tls-ca ca" in there[4]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--min-np", "0"], "--min-np: must be at least 1"),
        (["--max-hosts", "0"], "--max-hosts: must be at least 1"),
        (["--slots", "0"], "--slots: must be at least 1"),
        (["--blacklist-cooldown-range", "9", "1"], "a cool-down must"),
        (["--rdzv-endpoint", "a:70000"], "a port to 65535"),
    ],
)
def test_wrong_options_are_named_in_the_last_line(capsys, options, says):
    needed = ["--host-discovery-script", "x", "--rdzv-endpoint", "a:1"]
    try:
        status = launch.main([*needed, "--token-file", "t", *options, "train.py"])
    except SystemExit as left:
        status = left.code
    assert status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("python -m drivetrain_horovod.on_elastic.launch: error: ")
    assert says in last


@pytest.fixture
def master(tmp_path):
    with Master(tmp_path / "job.db") as found:
        yield found


@pytest.mark.faults
def test_training_goes_on_while_hosts_come_and_go(tmp_path, master):
    (tmp_path / "token").write_text(master.token)
    (tmp_path / "token").chmod(0o600)
    hosts, out = tmp_path / "hosts", tmp_path / "steps.json"
    hosts.write_text("one:1\n")
    script = Path(__file__).with_name("horovod_story.py")
    command = [sys.executable, "-m", "drivetrain_horovod.on_elastic.launch"]
    command += ["--host-discovery-script", f"cat {hosts}"]
    command += ["--rdzv-endpoint", master.address]
    command += ["--token-file", str(tmp_path / "token"), str(script)]
    command += ["--out", str(out), "--epochs", "12", "--pause-s", "0.1"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        try:
            wanted = ["one:1\ntwo:1\n", "two:1\n"]
            for line in process.stderr:
                if wanted and " world " in line and "without" not in line:
                    hosts.write_text(wanted.pop(0))
            assert process.wait(60) == 0
        finally:
            process.terminate()
    told = json.loads(out.read_text())
    assert sizes_of(told["steps"]) == [1, 2, 1]
    check_steps(told["steps"], 12)


def test_fixed_hosts_stay():
    hosts = FixedHosts({"a": 1})
    hosts.find_available_hosts_and_slots().clear()
    assert hosts.find_available_hosts_and_slots() == {"a": 1}
