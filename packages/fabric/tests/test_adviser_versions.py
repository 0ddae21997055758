"""Settings by the version of NCCL, and what is set wrongly, by file and line."""

import pytest

from drivetrain_fabric.adviser import AdviserError, Assignment, Facts, advise, gather
from drivetrain_fabric.adviser._check import check_settings
from drivetrain_fabric.adviser._versions import (
    assumed_version,
    default_of,
    nearest_name,
    parse_version,
    settings_of,
    wrong_value,
)

NEW = (2, 29, 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.29.7", (2, 29, 7)),
        ("2.4", (2, 4)),
        ("2.30.7+cuda13.0", (2, 30, 7)),
        (" 2.18.3-1 ", (2, 18, 3)),
    ],
)
def test_version_is_numbers(text, expected):
    assert parse_version(text) == expected


@pytest.mark.parametrize(
    "text", ["", "2", "2.x", "1.3.4", "29700", "2.29.7.1", "v2.29"]
)
def test_version_that_is_none(text):
    with pytest.raises(AdviserError, match=r"NCCL"):
        parse_version(text)


@pytest.mark.parametrize(
    ("torch", "version"),
    [
        ("2.11.0", (2, 28, 9)),
        ("2.13.0+cpu", (2, 29, 7)),
        ("2.15.1", (2, 30, 7)),
        ("2.99.0", (2, 28, 9)),
        ("nightly", (2, 28, 9)),
        (None, (2, 28, 9)),
    ],
)
def test_version_that_is_assumed_has_a_reason(torch, version):
    found, why = assumed_version(torch)
    assert found == version
    assert why.endswith("asks for it")


@pytest.mark.parametrize(
    ("name", "without", "with_it"),
    [
        ("NCCL_IB_SPLIT_DATA_ON_QPS", (2, 17, 1), (2, 18, 1)),
        ("NCCL_IB_FIFO_TC", (2, 22, 2), (2, 22, 3)),
        ("NCCL_MAX_CTAS", (2, 16, 2), (2, 17, 1)),
        ("NCCL_SOCKET_SNDBUF", (2, 26, 2), (2, 27, 3)),
        ("NCCL_UID_STAGGER_RATE", (2, 22, 3), (2, 23, 4)),
        ("NCCL_RMA_DISABLE", (2, 30, 4), (2, 30, 7)),
        ("NCCL_PROXY_PROFILE", (2, 23, 4), (2, 22, 3)),
        # The manual says 2.28; the library of 2.28.9 does not have it.
        ("NCCL_SOCKET_POLL_TIMEOUT_MSEC", (2, 28, 9), (2, 29, 7)),
        ("NCCL_MULTI_RANK_GPU_ENABLE", (2, 29, 7), (2, 30, 3)),
        ("NCCL_TREE_THRESHOLD", (2, 5, 6), (2, 4, 8)),
        ("NCCL_SHM_USE_CUDA_MEMCPY", (2, 30, 7), (2, 29, 7)),
        ("NCCL_NONSENSE", NEW, None),
        ("NCCL_BLOCKING_WAIT", NEW, None),
    ],
)
def test_settings_come_and_go(name, without, with_it):
    assert name not in settings_of(without)
    assert with_it is None or name in settings_of(with_it)


def test_defaults_by_version():
    versions = [(2, 13), (2, 14), (2, 22), (2, 23)]
    found = [default_of("NCCL_IB_TIMEOUT", version) for version in versions]
    assert found == ["14", "18", "18", "20"]
    split = [default_of("NCCL_IB_SPLIT_DATA_ON_QPS", (2, n)) for n in (17, 18, 20)]
    assert split == [None, "1", "0"]
    assert default_of("NCCL_IB_HCA", NEW) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NCCL_SOCKET_NTHREAD", "NCCL_SOCKET_NTHREADS"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_IB_QPS_PER_CONN", "NCCL_IB_QPS_PER_CONNECTION"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("TORCH_NCCL_RANK_PER_ROOT", "TORCH_NCCL_RANKS_PER_ROOT"),
        ("NCCL_COMPLETELY_ELSE", None),
    ],
)
def test_nearest_spelling(written, meant):
    assert nearest_name(written, NEW) == meant


def test_nearest_spelling_is_one_that_the_version_knows():
    assert nearest_name("NCCL_MAX_CTA", (2, 17, 1)) == "NCCL_MAX_CTAS"
    assert nearest_name("NCCL_MAX_CTA", (2, 16, 2)) != "NCCL_MAX_CTAS"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NCCL_IB_TIMEOUT", "22", None),
        ("NCCL_IB_TIMEOUT", "0x16", None),
        ("NCCL_IB_TIMEOUT", "0o17", "NCCL reads that as 0"),
        ("NCCL_IB_TIMEOUT", "0b11", "NCCL reads that as 0"),
        ("NCCL_IB_TIMEOUT", "32", "0 to 31, got 32"),
        ("NCCL_IB_TIMEOUT", "-1", "0 to 31, got -1"),
        ("NCCL_IB_TIMEOUT", "long", "NCCL reads that as 0"),
        ("NCCL_IB_TIMEOUT", "22 # seconds", "NCCL reads that as 22"),
        ("NCCL_IB_TIMEOUT", "022", "reads '022' as 18"),
        ("NCCL_IB_TIMEOUT", "08", "NCCL reads that as 0"),
        # Scripts undo a setting so.
        ("NCCL_IB_TIMEOUT", "", None),
        ("NCCL_P2P_LEVEL", "", None),
        ("NCCL_BUFFSIZE", "16M", "NCCL reads that as 16"),
        # NCCL ignores, without a word, what is not in upper case.
        ("NCCL_NET_GDR_LEVEL", "phb", "got 'phb': in upper case"),
        ("NCCL_SOCKET_FAMILY", "af_inet", "in upper case"),
        ("NCCL_LAUNCH_MODE", "group", None),
        ("NCCL_NET_GDR_LEVEL", "PHB", None),
        ("NCCL_NET_GDR_LEVEL", "C2C", None),
        # It cuts numbers to the levels that there are.
        ("NCCL_NET_GDR_LEVEL", "5", None),
        ("NCCL_P2P_LEVEL", "99", None),
        ("NCCL_P2P_LEVEL", "-1", "one of LOC"),
        # It does not start with a word that it does not know.
        ("NCCL_ALGO", "Ring,Tre", "does not start with 'Tre': it knows Tree, Ring"),
        ("NCCL_ALGO", "allreduce:ring,tree;broadcast:^RING", None),
        ("NCCL_ALGO", "ring;allreduce:ringtree", "does not start with 'ringtree'"),
        ("NCCL_PROTO", "^LL128", None),
        ("NCCL_PROTO", "LL,", None),
        ("NCCL_PROTO", "LL256", "it knows LL, LL128, Simple"),
        ("NCCL_NET_GDR_LEVEL", "NODE", "one of LOC"),
        ("NCCL_DEBUG", "verbose", "one of VERSION, WARN"),
        ("NCCL_IB_HCA", "anything", None),
        ("TORCH_NCCL_RANKS_PER_ROOT", "many", "must be a number, got 'many'"),
        ("NCCL_NONSENSE", "x", None),
    ],
)
def test_values(name, value, said):
    found = wrong_value(name, value, NEW)
    assert found is None if said is None else said in found


def test_most_blocks_by_version():
    assert wrong_value("NCCL_MAX_CTAS", "64", (2, 25, 1)) is None
    assert "1 to 32" in wrong_value("NCCL_MAX_CTAS", "64", (2, 24, 3))


def check(*pairs, nccl=NEW, **known):
    lines = tuple(Assignment(name=n, value=v) for n, v in pairs)
    return check_settings(Facts(settings=lines, nccl=nccl, **known))


@pytest.mark.parametrize(
    ("name", "value", "nccl", "because", "fix"),
    [
        (
            "NCCL_SOCKET_NSOCKS_PERTHREAD",
            "4",
            NEW,
            "not known to NCCL 2.29.7",
            "did you mean NCCL_NSOCKS_PERTHREAD?",
        ),
        ("NCCL_WHATEVER_IT_IS", "4", NEW, "not known to NCCL 2.29.7", "leave it out"),
        (
            "NCCL_MAX_CTAS",
            "4",
            (2, 16, 2),
            "2.16.2: its source has it since 2.17.1",
            "leave",
        ),
        ("NCCL_TREE_THRESHOLD", "0", NEW, "it no more since 2.5.6", "set NCCL_ALGO"),
        ("NCCL_BLOCKING_WAIT", "1", NEW, "since torch 2.2", "set TORCH_NCCL_BLOCK"),
        ("NCCL_IB_RETRY_CNT", "13", NEW, "0 to 7, got 13", "correct it"),
        ("GLOO_SOCKET_IFNAM", "a", NEW, "not known to Gloo", "GLOO_SOCKET_IFNAME?"),
        ("TORCH_NCCL_DUMP", "1", NEW, "not known to torch 2.13", "leave it out"),
    ],
)
def test_what_is_set_wrongly(name, value, nccl, because, fix):
    (found,) = check((name, value), nccl=nccl)
    assert (found.name, found.where) == (name, "environment")
    assert because in found.because
    assert fix in found.fix


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG", "NCCL_VERSION", "NCCL_FASTRAK_IFNAME", "NCCL_GIN_PLUGIN"],
)
def test_what_is_set_rightly_or_for_somebody_else(name):
    assert check((name, "WARN")) == ()


def test_files_are_named_with_their_lines(tmp_path):
    file = tmp_path / "etc/nccl.conf"
    file.parent.mkdir()
    file.write_text(
        "\n"
        "# ours\n"
        "NCCL_IB_TIMEOUT = 22\n"
        "NCCL_IB_RETRY_CNT 7\n"
        "NCCL_IB_GDI_INDEX=3\n"
        "NCLL_DEBUG=WARN\n"
        " # not a comment to NCCL\n"
        "NCCL_BUFFSIZE=8M\n"
        "NCCL_DEBUG=WARN\n"
    )
    problems = check_settings(gather(tmp_path, environment={}))
    found = {one.where.rsplit(":", 1)[1]: one for one in problems}
    assert all(one.where.startswith(str(file)) for one in problems)
    assert sorted(found) == ["3", "4", "5", "6", "7", "8"]
    assert found["3"].name == "NCCL_IB_TIMEOUT = 22"
    assert "NAME=value" in found["4"].because
    assert found["5"].fix == "did you mean NCCL_IB_GID_INDEX?"
    assert found["6"].fix == "did you mean NCCL_DEBUG?"
    assert "as 8" in found["8"].because


def test_file_that_is_named_and_not_there(tmp_path):
    environment = {"NCCL_CONF_FILE": str(tmp_path / "none.conf")}
    (found,) = check_settings(gather(tmp_path, environment=environment))
    assert (found.name, found.where) == (
        "NCCL_CONF_FILE",
        environment["NCCL_CONF_FILE"],
    )


def test_two_values_of_a_setting(tmp_path):
    file = tmp_path / "etc/nccl.conf"
    file.parent.mkdir()
    file.write_text("NCCL_DEBUG=INFO\nNCCL_IB_TC=106\n")
    environment = {"NCCL_DEBUG": "WARN", "NCCL_IB_TC": "106"}
    (found,) = check_settings(gather(tmp_path, environment=environment))
    assert found.where == f"{file}:1"
    assert found.because == "environment says WARN, which comes first"


def test_nothing_is_advised_that_the_version_does_not_know():
    lines = (Assignment(name="NCCL_MAX_NCHANNELS", value="8"),)
    for minor in range(10, 33):
        facts = Facts(settings=lines, nccl=(2, minor, 9), ranks=8)
        for one in advise(facts).advice:
            assert one.value is None or one.setting in settings_of(facts.nccl)


def test_advice_says_since_when():
    lines = (Assignment(name="NCCL_MAX_NCHANNELS", value="8"),)
    found = {a.setting: a for a in advise(Facts(settings=lines, ranks=8)).advice}
    assert found["NCCL_MAX_CTAS"].since == "2.17.1"
    assert found["NCCL_MAX_NCHANNELS"].since == "2.5.6"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("9" * 5000, f"it must be 0 to 7, got {'9' * 60}..."),
        ("-" + "9" * 5000, f"it must be 0 to 7, got -{'9' * 59}..."),
        (
            "9" * 5000 + "K",
            f"it must be a number, got '{'9' * 60}...': NCCL reads that as its default",
        ),
        ("0" * 5000 + "5", None),
        ("0" * 5000, None),
        ("007", None),
        ("1_0", "it must be a number, got '1_0': NCCL reads that as 1"),
    ],
)
def test_numbers_of_any_length_are_read_as_c_does(value, said):
    assert wrong_value("NCCL_IB_RETRY_CNT", value, (2, 29, 7)) == said


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("CCL_NET_GDR_LEVEL", "NCCL_NET_GDR_LEVEL"),
        ("NNCCL_DEBUG", "NCCL_DEBUG"),
        ("NCLC_DEBUG", "NCCL_DEBUG"),
        ("MCCL_IB_HCA", "NCCL_IB_HCA"),
        ("NCC_IB_HCA", "NCCL_IB_HCA"),
    ],
)
def test_slip_of_the_pen_in_the_environment_is_noticed(tmp_path, slip, meant):
    (found,) = check_settings(gather(tmp_path, environment={slip: "1"}))
    assert (found.name, found.where) == (slip, "environment")
    assert found.because.startswith("not known to NCCL")
    assert found.fix.startswith(f"did you mean {meant}?")
    assert "if another library reads it, leave it" in found.fix


@pytest.mark.parametrize(
    "name",
    [
        # Real ones of oneCCL, RCCL, UCX and shells.
        "CCL_ALLREDUCE",
        "CCL_LOG_LEVEL",
        "CCL_ROOT",
        "CCL_WORKER_COUNT",
        "CCL_ZE_IPC_EXCHANGE",
        "RCCL_MSCCL_ENABLE",
        "UCX_NET_DEVICES",
        "PATH",
        "DEBUG",
        "N",
    ],
)
def test_variables_of_others_are_left_alone(tmp_path, name):
    facts = gather(tmp_path, environment={name: "1"})
    assert facts.settings == ()
    assert check_settings(facts) == ()


def test_slip_of_what_the_version_lacks_gets_no_word():
    line = Assignment(name="CCL_IB_RAIL_POLICY", value="1")
    assert check_settings(Facts(settings=(line,), nccl=(2, 12, 12))) == ()


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("NCCL_IB_TIMEOUT", "22", 22),
        ("NCCL_IB_TIMEOUT", "022", 18),
        ("NCCL_IB_TIMEOUT", " -0x10", -16),
        ("NCCL_IB_TIMEOUT", "22 # seconds", 22),
        ("NCCL_IB_TIMEOUT", "0o17", 0),
        ("NCCL_IB_TIMEOUT", "long", 0),
        ("NCCL_IB_TIMEOUT", "", None),
        ("NCCL_IB_TIMEOUT", "9" * 5000, None),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", 2000),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000 rows", None),
    ],
)
def test_advice_goes_by_the_number_that_is_read(name, value, number):
    facts = Facts(settings=(Assignment(name=name, value=value),))
    assert facts.number_of(name) == number


def test_advice_on_a_time_out_that_is_no_number_is_on_what_nccl_reads():
    line = Assignment(name="NCCL_UID_STAGGER_RATE", value="010")
    found = {a.setting: a for a in advise(Facts(settings=(line,), ranks=5000)).advice}
    assert "NCCL_UID_STAGGER_RATE" not in found
    lines = (line, Assignment(name="TORCH_NCCL_RANKS_PER_ROOT", value="5000"))
    found = {a.setting: a for a in advise(Facts(settings=lines, ranks=5000)).advice}
    assert "5000 / 8 calls" in found["NCCL_UID_STAGGER_RATE"].because
