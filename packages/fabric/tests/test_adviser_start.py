"""Rules for the start of large jobs, for blocks of the GPU, and for torch's guards."""

import pytest
from adviser_hosts import facts, rdma, said

from drivetrain_fabric.adviser._rules._ctas import advise_ctas
from drivetrain_fabric.adviser._rules._init import advise_init, stagger_s
from drivetrain_fabric.adviser._rules._torch import advise_torch

LAZY, CONNECT = "TORCH_GLOO_LAZY_INIT", "NCCL_RUNTIME_CONNECT"
ROOT, RATE = "TORCH_NCCL_RANKS_PER_ROOT", "NCCL_UID_STAGGER_RATE"


@pytest.mark.parametrize(
    ("ranks", "nccl", "set_to", "expected"),
    [
        (255, (2, 29, 7), {}, {}),
        (256, (2, 29, 7), {}, {LAZY: "1"}),
        (256, (2, 29, 7), {LAZY: "0"}, {}),
        (256, (2, 29, 7), {LAZY: "1", CONNECT: "0"}, {CONNECT: None}),
        (8, (2, 29, 7), {CONNECT: "0"}, {}),
        (4096, (2, 29, 7), {LAZY: "1", ROOT: "2048"}, {ROOT: None}),
        (4096, (2, 29, 7), {LAZY: "1", ROOT: "64"}, {}),
        (200, (2, 29, 7), {ROOT: "2048"}, {}),
        (4096, (2, 22, 3), {LAZY: "1", ROOT: "2048"}, {}),
        (
            4096,
            (2, 29, 7),
            {LAZY: "1", ROOT: "4096", RATE: "100"},
            {ROOT: None, RATE: None},
        ),
        (4096, (2, 29, 7), {LAZY: "1", RATE: "100"}, {}),  # 128 call the same root
    ],
)
def test_start_by_ranks(ranks, nccl, set_to, expected):
    known = facts(ranks=ranks, nccl=nccl, set_to=set_to)
    assert said(advise_init, known) == (expected, [])


def test_start_is_not_judged_without_ranks():
    assert said(advise_init, facts(ranks=None)) == ({}, ["start"])


def test_seconds_of_staggered_calls():
    assert stagger_s(256, 256, 100) == 0.0
    assert stagger_s(257, 256, 100) == 2.57


MAX, MIN = "NCCL_MAX_CTAS", "NCCL_MIN_CTAS"
OLD_MAX, OLD_MIN = "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"
SENDS = "NCCL_MAX_P2P_NCHANNELS"


@pytest.mark.parametrize(
    ("nccl", "set_to", "expected"),
    [
        ((2, 29, 7), {}, {}),
        ((2, 29, 7), {MAX: "8"}, {SENDS: "8"}),
        ((2, 29, 7), {MAX: "8", SENDS: "4"}, {}),
        ((2, 29, 7), {OLD_MAX: "8"}, {OLD_MAX: None, MAX: "8", SENDS: "8"}),
        ((2, 29, 7), {OLD_MIN: "8"}, {OLD_MIN: None, MIN: "8"}),
        ((2, 16, 2), {OLD_MAX: "8"}, {SENDS: "8"}),
        ((2, 16, 2), {OLD_MIN: "8"}, {}),
        (
            (2, 17, 1),
            {OLD_MAX: "1000"},
            {OLD_MAX: None, MAX: "32", SENDS: "32"},
        ),
        # Of two limits the tighter counts.
        (
            (2, 29, 7),
            {MAX: "16", OLD_MAX: "8"},
            {OLD_MAX: None, MAX: "8", SENDS: "8"},
        ),
        ((2, 29, 7), {MIN: "4", OLD_MIN: "8"}, {OLD_MIN: None, MIN: "8"}),
        ((2, 29, 7), {MIN: "16", MAX: "8", SENDS: "8"}, {MIN: "8"}),
        ((2, 29, 7), {MIN: "8", MAX: "8", SENDS: "8"}, {}),
        (
            (2, 29, 7),
            {OLD_MIN: "16", MAX: "8", SENDS: "8"},
            {OLD_MIN: None, MIN: "8"},
        ),
        ((2, 16, 2), {OLD_MIN: "16", OLD_MAX: "8", SENDS: "8"}, {OLD_MIN: "8"}),
    ],
)
def test_limits_of_blocks(nccl, set_to, expected):
    assert said(advise_ctas, facts(nccl=nccl, set_to=set_to)) == (expected, [])


def test_least_number_on_erdma_is_the_providers():
    card = rdma(device="erdma_0", driver="erdma")
    assert advise_ctas(facts(card, set_to={OLD_MIN: "8", MIN: "9"})) == []


@pytest.mark.parametrize(
    ("set_to", "expected"),
    [
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, None),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, "TORCH_NCCL_BLOCKING_WAIT"),
        ({"TORCH_NCCL_BLOCKING_WAIT": "0"}, None),
        (
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "1"},
            "TORCH_NCCL_BLOCKING_WAIT",
        ),
        ({"TORCH_NCCL_ENABLE_MONITORING": "false"}, "TORCH_NCCL_ENABLE_MONITORING"),
        ({"TORCH_NCCL_ENABLE_MONITORING": "1"}, None),
        (
            {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30"},
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        ),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "600"}, None),
        (
            {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
            "TORCH_NCCL_TRACE_BUFFER_SIZE",
        ),
        (
            {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
            None,
        ),
    ],
)
def test_guards_of_torch(set_to, expected):
    found, gaps = said(advise_torch, facts(set_to=set_to))
    assert found == ({expected: None} if expected else {})
    assert gaps == []


@pytest.mark.parametrize(
    ("value", "ranks", "fires"),
    [("INFO", 64, True), ("info", 64, True), ("INFO", 8, False), ("WARN", 64, False)],
)
def test_talk_of_many_ranks(value, ranks, fires):
    found, _ = said(advise_torch, facts(ranks=ranks, set_to={"NCCL_DEBUG": value}))
    assert found == ({"NCCL_DEBUG": "WARN"} if fires else {})
