"""What is said of kernels that were compiled for GPUs that are not here."""

import ahead
import pytest

SMALL = {"kernel": "_norm", "registers": 40, "stack_bytes": 8, "shared_bytes": 1024}


def test_kernel_that_does_not_fit_or_spills_is_a_fault(monkeypatch):
    monkeypatch.setattr(ahead, "SPILLS", (("^attention", 512, "holds tiles"),))
    found = {
        "norm: fits": SMALL,
        "norm: large": {**SMALL, "shared_bytes": 200_000},
        "norm: spills": {**SMALL, "stack_bytes": 16},
        "attention: spills": {**SMALL, "stack_bytes": 512},
        "moe": {"refused": "it takes no float64"},
    }
    large, spills = ahead.faults((8, 0), found)
    assert large.startswith("8.0 norm: large: 200,000 bytes of shared memory")
    assert spills == "8.0 norm: spills: 16 bytes of stack, 8 are allowed"
    # An H100 has more.
    assert len(ahead.faults((9, 0), found)) == 1


def test_table_has_the_most_that_a_kernel_needs_on_each_gpu():
    found = {
        "9.0": {"norm 1, f": SMALL, "norm 2, f": {**SMALL, "registers": 99},
                "rope, f": SMALL, "moe": {"refused": "why"}},
        "7.5": {"optim all": {"refused": "too old"}},
    }  # fmt: skip
    lines = ahead.table(found).splitlines()[2:]
    assert lines == [
        "| 9.0 | moe | refused: why |",
        "| 9.0 | norm norm | 2 | 99 | 8 | 1,024 |",
        "| 9.0 | rope norm | 1 | 40 | 8 | 1,024 |",
        "| 7.5 | optim all | refused: too old |",
    ]


@pytest.mark.parametrize(
    ("results", "code"),
    [({"norm: k": SMALL}, 0), (None, 2)],
    ids=["compiles", "cannot"],
)
def test_command_says_whether_all_fit(monkeypatch, tmp_path, capsys, results, code):
    monkeypatch.setattr(ahead, "compile_apart", lambda *given: results)
    kept = tmp_path / "ahead.json"
    assert ahead.main(["9.0", "--json", str(kept)]) == code
    assert kept.exists() == (code == 0)
    with pytest.raises(SystemExit):
        ahead.main(["6.1"])
    assert "known are 7.5, 8.0" in capsys.readouterr().err
