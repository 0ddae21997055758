"""Advice as a table, as lines for a shell, as changes, as JSON; and the command."""

import json
import os
import subprocess

import pytest
from adviser_hosts import facts, rdma, write_host

from drivetrain_fabric.adviser import (
    AdviserError,
    Assignment,
    Facts,
    advise,
    as_diff,
    as_env,
    changes,
    with_given,
)
from drivetrain_fabric.cli import main


def forms(**known):
    host = facts(rdma(0), rdma(1), **known)
    return host, advise(host)


def test_changes_of_each_kind():
    set_to = {
        "NCCL_CHUNK_SIZE": "1048576",
        "NCCL_IB_TIMEOUT": "14",
        "NCCL_IB_TC": "106",
        "NCCL_DEBUG": "WARN",
    }
    host, report = forms(dscp=26, num_paths=8, set_to=set_to)
    found = {one.setting: one for one in changes(host, report)}
    kinds = {name: one.kind for name, one in found.items()}
    assert kinds == {
        "NCCL_CHUNK_SIZE": "removed",
        "NCCL_IB_TIMEOUT": "changed",
        "NCCL_IB_QPS_PER_CONNECTION": "added",
        "NCCL_IB_TC": "unchanged",
        "NCCL_DEBUG": "unchanged",
    }
    lines = as_diff(host, report).splitlines()
    assert "- NCCL_CHUNK_SIZE=1048576  (bad)" in lines
    assert "~ NCCL_IB_TIMEOUT=14 -> 20  (warn)" in lines
    assert "+ NCCL_IB_QPS_PER_CONNECTION=8  (try)" in lines
    assert "  NCCL_IB_TC=106" in lines
    unknown = [line for line in lines if line.startswith("# not known: ")]
    assert len(unknown) == len(report.gaps) > 0
    assert lines[1].startswith("# a link may be gone for ")
    assert len(lines) == 7 + len(unknown)


def test_changes_of_the_kernel_are_against_what_it_has(tmp_path, capsys):
    host = write_host(tmp_path, "virtio")
    words = ["advise", "--root", str(host), "--delay-ms", "5", "--gbps", "10"]
    assert main([*words, "--as", "diff"]) == 0
    lines = capsys.readouterr().out.splitlines()
    now, then = "4096 16384 4194304", "4096 16384 33554432"
    assert f"~ net.ipv4.tcp_wmem={now} -> {then}  (warn)" in lines


def source(text):
    """What a shell has after it read the lines."""
    script = f"set -eu\n{text}\nenv -0"
    clean = {"PATH": os.environ["PATH"], "NCCL_CHUNK_SIZE": "1048576"}
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env=clean,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs if name.startswith("NCCL_")}


def test_lines_for_a_shell_do_what_they_say():
    host, report = forms(
        dscp=26,
        num_paths=8,
        memlock_bytes=65536,
        set_to={"NCCL_CHUNK_SIZE": "1048576", "NCCL_IB_TIMEOUT": "14"},
    )
    text = as_env(host, report)
    # What is to be tried first is a comment; so is all but variables.
    assert "# export NCCL_IB_QPS_PER_CONNECTION=8" in text
    assert "# memlock: soft and hard memlock unlimited" in text
    assert source(text) == {"NCCL_IB_TC": "106", "NCCL_IB_TIMEOUT": "20"}
    assert all(one.because in text for one in report.advice)


@pytest.mark.parametrize(
    "evil",
    [
        "$(touch pwned)",
        "a\nexport NCCL_PWNED=1",
        "a\r\nexport NCCL_PWNED=1",
        "a\u2028export NCCL_PWNED=1",
        "'; export NCCL_PWNED=1; '",
    ],
)
def test_lines_for_a_shell_hold_nothing_that_runs(evil, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    host, report = forms(
        set_to={"NCCL_IB_HCA": evil, "NCCL_NONSENSE": evil, evil: "1"},
        default_route=evil,
        own_address="127.0.0.1",
        bad_lines=((evil, evil),),
        interface_names=None,
    )
    assert any(one.setting == "GLOO_SOCKET_IFNAME" for one in report.advice)
    assert report.problems
    found = source(as_env(host, report))
    assert "NCCL_PWNED" not in found
    assert list(tmp_path.iterdir()) == []


def test_settings_of_files_cannot_be_unset_in_a_shell():
    line = Assignment(name="NCCL_CHUNK_SIZE", value="1048576", where="/etc/nccl.conf:3")
    host = Facts(settings=(line,), ranks=8)
    text = as_env(host, advise(host))
    assert "# unset NCCL_CHUNK_SIZE: it stands in /etc/nccl.conf:3" in text
    assert "\nunset" not in text


@pytest.fixture
def command(tmp_path, capsys):
    """Runs `advise` on the tree of a host."""

    def run(name, *words, status=0):
        root = tmp_path / "host"
        if not root.exists():
            root.mkdir()
            write_host(root, name)
        try:
            found = main(["advise", "--root", str(root), *words])
        except SystemExit as left:
            found = left.code
        assert found == status
        return capsys.readouterr()

    return run


def test_command_shows_tables(command):
    out = command("roce", "--nccl-version", "2.19.4", "--dscp", "26", status=1).out
    assert "NCCL 2.19.4 (given), roce" in out
    assert "NCCL_IB_TIMEOUT" in out
    assert "nothing is said on" in out
    assert "--paths" in out


def test_command_prints_json(command):
    words = ["--nccl-version", "2.29.7", "--dscp", "26", "--json"]
    found = json.loads(command("roce", *words, status=1).out)
    advice = {one["setting"]: one for one in found if one["kind"] == "advice"}
    assert advice["NCCL_IB_TC"]["value"] == "106"
    assert advice["memlock"]["level"] == "bad"
    assert all({"kind", "name", "level"} <= one.keys() for one in found)


def test_command_says_what_it_assumed(command):
    out = command("aws", "--as", "diff").out
    assert "(assumed, as " in out
    assert "asks for it), sockets" in out


def test_command_takes_what_was_measured(command, tmp_path):
    report = {
        "hosts": [[0, 1], [2, 3]],
        "network": {
            "delay_s": 0.005,
            "flow_bytes_per_s": 1.25e8,
            "port_bytes_per_s": 1.25e9,
            "local_bytes_per_s": 1e10,
        },
    }
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(report))
    out = command("virtio", "--measured", str(file), "--as", "env").out
    # Ten connections of 1 Gbit/s fill 10 Gbit/s.
    assert "export NCCL_SOCKET_NTHREADS=4" in out
    assert "export NCCL_NSOCKS_PERTHREAD=3" in out
    # 10 Gbit/s and 10 ms there and back are 12.5 MB; twice that, as a power of two.
    assert "# sysctl -w net.ipv4.tcp_wmem='4096 16384 33554432'" in out


RATES = {"delay_s": 0, "port_bytes_per_s": 1, "flow_bytes_per_s": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tune --json"),
        ("[]", "tune --json"),
        ('{"hosts": [[0]], "network": {}}', "delay_s"),
        (
            json.dumps({"hosts": [[0]], "network": RATES}),
            "nothing was measured between hosts",
        ),
        (
            json.dumps(
                {"hosts": [[0], [1]], "network": {**RATES, "port_bytes_per_s": 0}}
            ),
            "port_bytes_per_s must be more than 0",
        ),
        ("[" * 200_000, "tune --json"),
        (
            json.dumps({"hosts": [[0], [1]], "network": {**RATES, "delay_s": 10**400}}),
            "delay_s is larger than any number",
        ),
        (
            json.dumps({"hosts": [[0], [1]], "network": RATES}).replace(
                '"delay_s": 0', '"delay_s": ' + "1" * 5000
            ),
            "tune --json",
        ),
        (json.dumps({"hosts": "ab", "network": RATES}), "hosts must be a list"),
        (json.dumps({"hosts": [[0], "b"], "network": RATES}), "hosts must be a list"),
        (
            json.dumps({"hosts": [[0], [1]], "network": {**RATES, "delay_s": True}}),
            "delay_s of the network must be a number",
        ),
        (
            '{"hosts": [[0], [1]], "hosts": [[0]], "network": {}}',
            "the key 'hosts' is there twice",
        ),
    ],
)
def test_command_refuses_what_was_not_measured(command, tmp_path, text, said):
    file = tmp_path / "measured.json"
    file.write_text(text)
    error = command("virtio", "--measured", str(file), status=1).err
    assert said in error
    assert str(file) in error
    assert error.count("\n") == 1


def test_command_takes_what_an_editor_saved(command, tmp_path):
    file = tmp_path / "measured.json"
    report = {"hosts": [[0], [1]], "network": {**RATES, "port_bytes_per_s": 1.25e9}}
    file.write_text(json.dumps(report), encoding="utf-8-sig")
    command("virtio", "--measured", str(file))


def test_command_takes_a_cluster(command, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        """
drivetrain_cluster: 1
name: two
nodes:
  - name: gpu
    count: 64
    devices: {kind: H100, count: 8, memory: 80GB}
    nics: {count: 4, bandwidth: 400Gb/s, latency: 5us, rdma: true}
    switch: leaf
switches:
  - {name: leaf}
"""
    )
    words = ["--cluster", str(file), "--nccl-version", "2.29.7", "--as", "diff"]
    out = command("roce", *words).out
    assert "+ NCCL_CROSS_NIC=1  (try)" in out
    assert "+ TORCH_GLOO_LAZY_INIT=1  (try)" in out  # 512 ranks
    assert "LAZY_INIT" not in command("roce", *words, "--ranks", "8").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nccl-version", "three"], "three numbers such as 2.29.7"),
        (["--delay-ms", "-1"], "--delay-ms: must be from 0 to 60,000, got -1"),
        (["--delay-ms", "nan"], "--delay-ms: must be a number, got 'nan'"),
        (["--gbps", "0"], "--gbps: must be more than 0"),
        (["--gbps", "nan"], "--gbps: must be a number"),
        (["--flow-gbps", "-2"], "--flow-gbps: must be more than 0"),
        (["--paths", "0"], "--paths: must be from 1 to"),
        (["--dscp", "64"], "--dscp: must be from 0 to 63"),
        (["--nccl-version", "2." + "1" * 5000], "three numbers such as 2.29.7"),
    ],
)
def test_command_refuses_what_cannot_be(command, words, said):
    assert said in command("virtio", *words, status=2).err


def test_command_says_that_a_file_is_missing(command):
    said = command("virtio", "--cluster", "/nowhere.yaml", status=1).err
    assert "/nowhere.yaml: cannot be read: No such file or directory" in said


def test_command_without_anything_to_read(tmp_path, capsys):
    assert main(["advise", "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "nothing to set" in out
    assert "any network card" in out


def test_table_shows_what_looks_like_markup(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    command("virtio")
    (tmp_path / "host/etc/nccl.conf").write_text("NCCL_[red]X[/blue] 1\n")
    assert "[red]X[/blue]" in command("virtio").out


def test_command_says_that_a_root_is_not_there(tmp_path, capsys):
    assert main(["advise", "--root", str(tmp_path / "none")]) == 1
    error = capsys.readouterr().err
    assert "there is no such folder" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("name", "value"), [("delay_ms", -5), ("paths", 0)])
def test_given_numbers_are_refused_by_their_own_name(name, value):
    with pytest.raises(AdviserError, match=rf"^{name} must be .*, got {value}$"):
        with_given(Facts(), **{name: value})
