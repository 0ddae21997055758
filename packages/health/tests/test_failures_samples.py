"""Each sample of a failure is found to be what it is."""

import pytest
from failure_samples import evidence_of, load

from drivetrain_health.failures import (
    Evidence,
    FailureClass,
    diagnose,
)

SAMPLES = {
    f"{kind}-{name}": sample
    for kind in ("recorded", "documented")
    for name, sample in load(kind).items()
}


def told(sample, **changes):
    found = diagnose(evidence_of({**sample, **changes}))
    return found.failure_class.value, found.cause, bool(found.node)


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_found_to_be_what_it_is(name):
    sample = SAMPLES[name]
    expected = sample["class"], sample["cause"], sample["blames_node"]
    assert told(sample) == expected
    found = diagnose(evidence_of(sample))
    assert found.reason
    assert len(found.reason) <= 300
    assert found.reason.isprintable()
    assert found.worker == "n1/0"


def test_samples_are_of_every_class():
    assert {one["class"] for one in SAMPLES.values()} == {c.value for c in FailureClass}


@pytest.mark.parametrize("name", [n for n in SAMPLES if n.startswith("recorded")])
def test_sample_stays_what_it_is_among_lines_that_mean_nothing(name):
    sample = SAMPLES[name]
    noise = [
        "WARNING fetch: connection reset by peer, retrying (1 of 5)",
        "step 17: loss 2.1, 0 errors",
        "\x1b[32m 41%|####\x1b[0m\r 42%|####",
        "x" * 50_000,
        "INFO checkpoint: no space left on device /a, using /b",
    ]
    kernel = [
        "mce: [Hardware Error]: Machine check events logged",
        "NVRM: Xid (PCI:0000:1b:00): 45, pid=9, name=python, Ch 00000010",
        "docker0: port 1(veth1) entered disabled state",
    ]
    changed = {
        "output": [*noise, *sample["output"]],
        "kernel": [*kernel, *sample["kernel"], *kernel],
    }
    expected = sample["class"], sample["cause"], sample["blames_node"]
    assert told(sample, **changed) == expected


def test_exit_codes_of_a_shell_are_read_as_signals():
    by_signal = {}
    for number in (4, 6, 7, 8, 9, 11, 15):
        codes = (-number, 128 + number)
        by_signal[number] = {
            diagnose(Evidence(worker="a", node="n", exit_code=code))[:2]
            for code in codes
        }
    assert all(len(found) == 1 for found in by_signal.values())
    assert len({next(iter(found)) for found in by_signal.values()}) == len(by_signal)
