"""Links that are gone for a while: how long RoCE and InfiniBand wait, and send again."""

import json
import os
from dataclasses import replace

import pytest
from adviser_hosts import ethernet, facts, rdma

from drivetrain_fabric.adviser import _gather, advise, as_diff, as_env
from drivetrain_fabric.adviser._rules._rdma import advise_rdma, longest_flap
from drivetrain_fabric.cli import main
from drivetrain_fabric.topology import Nic, PciSlot, RdmaPort

SHOWN = """Sending access register...

Field Name                                     | Data
============================================================
roce_adp_retrans_field_select                  | 0x00000001
roce_slow_restart_field_select                 | 0x00000001
roce_slow_restart_idle_field_select            | 0x00000001
roce_adp_retrans_en                            | 0x00000000
roce_tx_window_en                              | 0x00000000
roce_slow_restart_en                           | 0x00000001
roce_slow_restart_idle_en                      | 0x00000000
ack_dscp                                       | 0x00000000
============================================================
"""
SELECTED = {
    "roce_adp_retrans_field_select": 1,
    "roce_slow_restart_field_select": 1,
    "roce_slow_restart_idle_field_select": 1,
}
FIELDS = (
    "roce_adp_retrans_en",
    "roce_slow_restart_en",
    "roce_slow_restart_idle_en",
)


def card(number=0, *, slot="0000:10:00.0", **fields):
    return replace(rdma(number, slot=slot), roce_accl=tuple(fields.items()))


@pytest.fixture
def nic():
    port = RdmaPort(
        device="mlx5_0",
        port=1,
        rate_mbit_per_s=400_000,
        link_layer="Ethernet",
        state="ACTIVE",
        num_gids=0,
    )
    slot = PciSlot(address="0000:10:00.0")
    return Nic(name="ens0", slot=slot, driver="mlx5_core", state="up", rdma=port)


def tool(folder, script, name="mlxreg"):
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def path(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return folder


@pytest.mark.parametrize("name", ["mlxreg", "mstreg"])
def test_register_is_read_with_the_tool_of_the_card(path, nic, name):
    said = path / "arguments"
    tool(path, f'echo "$@" > {said}\ncat <<END\n{SHOWN}END', name)
    found = dict(_gather._roce_accl(nic))
    assert said.read_text().split() == [
        *("-d", "0000:10:00.0", "--reg_name", "ROCE_ACCL", "--get")
    ]
    assert found == {
        **SELECTED,
        "roce_adp_retrans_en": 0,
        "roce_tx_window_en": 0,
        "roce_slow_restart_en": 1,
        "roce_slow_restart_idle_en": 0,
    }


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "kill -9 $$",
        "true",
        "printf '\\377\\376 roce_adp_retrans_en | 0x1'",
        "echo 'roce_adp_retrans_en | yes'",
        "echo 'roce_adp_retrans_en | 0x1ffffffffffffffffff'",
        "echo '-E- Failed to open device' >&2; exit 3",
        f"cat <<END\n{SHOWN}END\nexit 2",
    ],
)
def test_odd_answers_of_the_tool_count_as_not_known(path, nic, script):
    tool(path, script)
    assert _gather._roce_accl(nic) == ()


def test_tool_that_does_not_end_or_run(path, nic, monkeypatch):
    monkeypatch.setattr(_gather, "_LONGEST_TOOL_S", 0.1)
    tool(path, "exec sleep 60")
    assert _gather._roce_accl(nic) == ()
    (path / "mlxreg").write_text("not a program")
    assert _gather._roce_accl(nic) == ()


def test_tool_is_asked_only_for_cards_that_have_the_register(path, nic):
    tool(path, f"cat <<END\n{SHOWN}END")
    assert nic.rdma is not None
    infiniband = replace(nic, rdma=replace(nic.rdma, link_layer="InfiniBand"))
    for other in (
        infiniband,
        replace(nic, rdma=None),
        replace(nic, driver="bnxt_en"),
        replace(nic, slot=None),
    ):
        assert _gather._roce_accl(other) == ()


def test_without_the_tool_nothing_is_asked(path, nic, monkeypatch):
    monkeypatch.setenv("PATH", str(path))
    assert _gather._roce_accl(nic) == ()


def test_copy_of_another_host_is_not_asked(tmp_path, path):
    tool(path, f"touch {tmp_path / 'asked'}")
    _gather.gather(tmp_path, environment={})
    assert not (tmp_path / "asked").exists()


def advised(*cards, **known):
    found = {one.setting: one for one in advise_rdma(facts(*cards, **known))}
    return {name: found[name] for name in FIELDS if name in found}


def test_adaptive_retransmission_and_slow_restart_are_advised():
    bad = SELECTED | dict(zip(FIELDS, (0, 1, 1), strict=True))
    found = advised(card(0, **bad), card(1, slot="0000:20:00.0", **bad))
    assert list(found) == list(FIELDS)
    do = found["roce_adp_retrans_en"].value
    assert do == (
        "mlxreg -d 0000:10:00.0 --reg_name ROCE_ACCL --set roce_adp_retrans_en=1 --yes; "
        "mlxreg -d 0000:20:00.0 --reg_name ROCE_ACCL --set roce_adp_retrans_en=1 --yes"
    )
    assert "roce_slow_restart_en=0" in found["roce_slow_restart_en"].value
    assert "MegaScale" in found["roce_adp_retrans_en"].source
    assert {one.scope for one in found.values()} == {"host"}


def test_what_is_right_or_cannot_be_set_gets_no_advice():
    good = SELECTED | dict(zip(FIELDS, (1, 0, 0), strict=True))
    assert advised(card(**good)) == {}
    assert advised(card()) == {}
    fixed = dict(zip(FIELDS, (0, 1, 1), strict=True))
    assert advised(card(**fixed)) == {}
    assert advised(card(**SELECTED)) == {}
    one = advised(card(0, **good), card(1, slot=None, **(SELECTED | fixed)))
    assert one == {}


@pytest.mark.parametrize(
    ("set_to", "version", "says"),
    [
        ({}, (2, 29, 7), "for 30.1 s: 4.096 us x 2^20 x 7"),
        ({}, (2, 22, 3), "for 7.52 s: 4.096 us x 2^18 x 7"),
        ({"NCCL_IB_TIMEOUT": "22"}, (2, 29, 7), "for 120 s: 4.096 us x 2^22 x 7"),
        ({"NCCL_IB_RETRY_CNT": "2"}, (2, 29, 7), "for 8.59 s: 4.096 us x 2^20 x 2"),
        ({"NCCL_IB_TIMEOUT": "0"}, (2, 29, 7), "for ever: 4.096 us x 2^0 x 7"),
    ],
)
def test_longest_flap_is_told_with_both_values(set_to, version, says):
    known = facts(card(), set_to=set_to, nccl=version)
    report = advise(known)
    assert says in report.longest_flap
    assert "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT" in report.longest_flap
    assert f"# {report.longest_flap}" in as_env(known, report).splitlines()
    assert f"# {report.longest_flap}" in as_diff(known, report).splitlines()


def test_longest_flap_is_another_with_adaptive_retransmission():
    assert "adaptive" not in longest_flap(facts(card(roce_adp_retrans_en=0)))
    told = longest_flap(facts(card(roce_adp_retrans_en=1), card(1)))
    assert "; ens0 send again by a profile of their own" in told
    assert "may give up at another time" in told


def test_longest_flap_is_no_subject_of_sockets():
    assert longest_flap(facts(ethernet())) == ""
    assert longest_flap(facts(card(), set_to={"NCCL_NET": "Socket"})) == ""


def test_command_tells_the_longest_flap(monkeypatch, capsys):
    known = facts(card())
    monkeypatch.setattr(
        "drivetrain_fabric.adviser._command.gather", lambda *_, **__: known
    )
    main(["advise"])
    assert "a link may be gone for 30.1 s" in capsys.readouterr().out
    main(["advise", "--json"])
    about = json.loads(capsys.readouterr().out)[0]
    assert about["longest_flap"].startswith("a link may be gone for 30.1 s")
