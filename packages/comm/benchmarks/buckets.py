"""What the size of buckets alone is worth: torch's backend in both, in turns."""

import statistics

import ddp
from rig.namespaces import missing_because
from rig.report import Bench
from rig.scenarios import Scenario
from rig.shape import Link

from drivetrain_testing import Row

# Communication takes about as long as computing: where overlap is worth most.
_SCENARIO = Scenario(
    num_hosts=4,
    ranks_per_host=1,
    link=Link(rate_mbit_per_s=1000),
    model="even",
    compute_s=0.54,
)
# Enough for the trial of `only_buckets`; later runs start with what it found.
_NUM_TUNED, _NUM_STEPS = 45, 14
_NUM_PAIRS = 3
_LEAST = 1.15


def buckets(quick):
    """The claim: Gloo with buckets of a size that was found beside Gloo as it is."""
    because = missing_because()
    if because or quick:
        return Row(figure=because or "takes a minute: --only buckets", holds=None)
    stock, tuned = [], []
    with ddp.kept_apart(), Bench(_SCENARIO, num_steps=_NUM_STEPS) as bench:
        for pair in range(_NUM_PAIRS):
            stock.append(bench.train(None)[1]["median_s"])
            num_steps = _NUM_STEPS if pair else _NUM_TUNED
            done, _ = bench.train("only_buckets", num_steps=num_steps)
            tuned.append(statistics.median(done.steps_s[-8:]))
    gain = statistics.median(stock) / statistics.median(tuned)
    return Row(
        figure=f"{gain:.2f} x ({statistics.median(stock):.3f} s a step to "
        f"{statistics.median(tuned):.3f} s, {_SCENARIO.name})",
        holds=gain >= _LEAST,
        proven_on="namespaces",
        details={"stock_s": stock, "tuned_s": tuned},
    )


if __name__ == "__main__":
    row = buckets(False)
    print(row.figure, row.details)
