"""How all ranks come to use the same table for NCCL, or none."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from drivetrain_comm.nccl import (
    HostedTuner,
    NcclTableError,
    Rule,
    Table,
    disable_tuner,
    enable_tuner,
    environment_of,
    parse_table,
    tuner_library,
)
from drivetrain_comm.nccl._agreement import Answer, agree, find_disagreement
from drivetrain_core import DistributedError, MissingLibraryError
from drivetrain_testing import run_ranks

TABLE = """drivetrain-nccl-table 1
all_reduce  0B..64KiB    8  1  tree  ll     channels=4
all_reduce  64KiB..1MiB  *  *  ring  ll128
"""
VARIABLES = (
    "NCCL_TUNER_PLUGIN",
    "DRIVETRAIN_COMM_NCCL_TABLE",
    "DRIVETRAIN_COMM_NCCL_TABLE_HASH",
)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    disable_tuner()


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "table"
    file.write_text(TABLE)
    return file


def variables():
    return {name: os.environ.get(name) for name in VARIABLES}


def test_enable_keeps_the_agreed_table_whatever_becomes_of_the_file(table):
    before = variables()
    found = enable_tuner(table)
    assert found == parse_table(TABLE)
    assert os.environ["NCCL_TUNER_PLUGIN"] == str(tuner_library())
    assert os.environ["DRIVETRAIN_COMM_NCCL_TABLE_HASH"] == found.hash
    table.write_text("changed")
    kept = Path(os.environ["DRIVETRAIN_COMM_NCCL_TABLE"])
    with HostedTuner(ranks=8, nodes=1) as tuner:
        assert tuner.chosen("all_reduce", 5) == ("tree", "ll")
    with kept.open("r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.write(b"changed")
    # A child that finds its own table by the variable finds this one.
    code = "import sys; sys.stdout.write(open(sys.argv[1]).read())"
    command = [sys.executable, "-c", code, str(kept)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert parse_table(text) == found
    disable_tuner()
    assert variables() == before
    assert not kept.exists()


def test_enable_takes_the_place_of_an_earlier_table(table):
    enable_tuner(table)
    rule = Rule(collective="reduce", algorithm="ring", protocol="ll")
    other = enable_tuner(Table(rules=(rule,)))
    assert os.environ["DRIVETRAIN_COMM_NCCL_TABLE_HASH"] == other.hash
    with HostedTuner(ranks=8, nodes=1) as tuner:
        assert tuner.chosen("reduce", 5) == ("ring", "ll")


def test_enable_refuses_what_cannot_work_and_changes_nothing(tmp_path, monkeypatch):
    before = variables()
    with pytest.raises(NcclTableError, match="none: it cannot be read: No such file"):
        enable_tuner(tmp_path / "none")
    with pytest.raises(DistributedError, match="rank must be 0 to 1"):
        enable_tuner(tmp_path, rank=2, world_size=2)
    with pytest.raises(DistributedError, match="2 ranks must compare their tables"):
        enable_tuner(tmp_path, rank=1, world_size=2)
    assert variables() == before
    file = tmp_path / "table"
    file.write_text(TABLE)
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "other")
    with pytest.raises(DistributedError, match="NCCL_TUNER_PLUGIN is set to other"):
        enable_tuner(file)
    assert os.environ["NCCL_TUNER_PLUGIN"] == "other"


def test_enable_says_what_the_plugin_does_not_take(table, monkeypatch):
    before = variables()
    monkeypatch.setattr(Table, "hash", property(lambda table: "0" * 64))
    with pytest.raises(NcclTableError, match="its rules must have the hash 0000"):
        enable_tuner(table)
    assert variables() == before


def test_enable_without_the_plugin_says_how_to_get_it(table, monkeypatch):
    monkeypatch.setattr("drivetrain_comm.__path__", [])
    with pytest.raises(MissingLibraryError, match="without a C\\+\\+ compiler"):
        enable_tuner(table)


class _Backend:
    def __init__(self, is_initialized):
        self._is_initialized = lambda: is_initialized


@pytest.mark.parametrize("is_initialized", [False, True])
def test_enable_comes_before_nccls_communicators(table, monkeypatch, is_initialized):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(
            dist.ProcessGroup,
            "_get_backend",
            lambda group, device: _Backend(is_initialized),
        )
        if is_initialized:
            with pytest.raises(DistributedError, match="communicators exist already"):
                enable_tuner(table)
        else:
            enable_tuner(table)
    finally:
        monkeypatch.undo()
        dist.destroy_process_group()


def enable_on_a_rank(texts, file_of):
    rank = int(os.environ["RANK"])
    file = Path(file_of) / f"table-{rank}"
    if texts[rank] is not None:
        file.write_text(texts[rank])
    try:
        enable_tuner(file)
    except DistributedError as error:
        return str(error), variables()
    with HostedTuner(ranks=8, nodes=1) as tuner:
        return tuner.chosen("all_reduce", 5), variables()


def test_ranks_with_the_same_rules_all_use_them(tmp_path):
    texts = [TABLE, "# the same\n" + TABLE, TABLE]
    found = run_ranks(enable_on_a_rank, 3, texts, str(tmp_path))
    assert [chosen for chosen, _ in found] == [("tree", "ll")] * 3
    assert len({seen["DRIVETRAIN_COMM_NCCL_TABLE_HASH"] for _, seen in found}) == 1


def test_ranks_with_other_rules_use_none_and_are_named(tmp_path):
    texts = [TABLE, TABLE.replace("channels=4", ""), TABLE]
    found = run_ranks(enable_on_a_rank, 3, texts, str(tmp_path))
    ((message, seen),) = {(text, tuple(seen.values())) for text, seen in found}
    mine, other = parse_table(texts[0]).hash, parse_table(texts[1]).hash
    assert "the rules of the NCCL table differ between ranks" in message
    assert f"hash {mine} on ranks 0, 2 (" in message
    assert f"; {other} on rank 1 (" in message
    assert seen == (None, None, None)


@pytest.mark.slow
def test_ranks_beside_one_that_refuses_use_none(tmp_path):
    texts = [TABLE, TABLE, None]
    found = run_ranks(enable_on_a_rank, 3, texts, str(tmp_path))
    ((message, seen),) = {(text, tuple(seen.values())) for text, seen in found}
    assert message.startswith("the NCCL table is used on no rank: rank 2 (")
    assert message.endswith("table-2: it cannot be read: No such file or directory")
    assert seen == (None, None, None)


def test_rank_that_does_not_come_is_named():
    store = dist.HashStore()
    answer = Answer(host="a", hash="b")
    short = timedelta(seconds=0.2)
    with pytest.raises(DistributedError, match=r"in vain for ranks 1, 2 to call"):
        agree(store, 0, 3, answer, short)
    with pytest.raises(DistributedError, match=r"in vain for rank 0 to call"):
        agree(store, 1, 3, answer, short)


def test_store_of_an_earlier_start_is_refused():
    store = dist.HashStore()
    wait = timedelta(seconds=5)
    agree(store, 0, 1, Answer(host="a", hash="b"), wait)
    store.set("answer/1", json.dumps({"host": "a", "hash": "b", "nonce": "old"}))
    agree(store, 0, 2, Answer(host="a", hash="b"), wait)
    with pytest.raises(DistributedError, match="what an earlier start of the job said"):
        agree(store, 1, 2, Answer(host="a", hash="b"), wait)


def test_answer_of_another_version_may_have_more_parts():
    store = dist.HashStore()
    said = {"host": "a", "hash": "b", "nonce": "c", "version": "9.0", "nccl": "3"}
    store.set("answer/1", json.dumps(said))
    with pytest.raises(
        DistributedError, match=r"differ between ranks: .*; 9\.0 on rank 1"
    ):
        agree(store, 0, 2, Answer(host="a", hash="b"), timedelta(seconds=5))


def test_calls_on_one_store_do_not_meet(table):
    store = dist.HashStore()
    for _ in range(2):
        enable_tuner(table, store=store, rank=0, world_size=1)


def test_disagreement_names_a_few_of_many():
    many = [Answer(host=f"n{rank // 8}", hash="ab") for rank in range(128)]
    odd = Answer(host="n16", hash="cd")
    assert find_disagreement(many) is None
    newer = Answer(host="n16", hash="ab", version="9.0")
    assert "9.0 on rank 128 (n16). Install the same" in find_disagreement(
        [*many, newer]
    )
    assert find_disagreement([*many, odd]) == (
        "the rules of the NCCL table differ between ranks: hash ab on ranks 0, 1, 2, 3, "
        "4, 5, 6, 7 and 120 more (n0, n1, n2, n3, n4, n5, n6, n7 and 8 more); cd on rank "
        "128 (n16). Give all hosts the same file"
    )


def test_variables_for_a_launcher_let_the_plugin_take_the_table(table, monkeypatch):
    for name, value in environment_of(table).items():
        monkeypatch.setenv(name, value)
    with HostedTuner(
        ranks=8, nodes=1, library=os.environ["NCCL_TUNER_PLUGIN"]
    ) as tuner:
        assert tuner.chosen("all_reduce", 5) == ("tree", "ll")
