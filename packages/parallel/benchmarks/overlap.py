"""How much of the time that communication could hide under computation it does hide.

Communication runs on shaped links between network namespaces; computation is a sleep,
since all ranks share this machine's cores. A bar takes all of its times in one run, in
turns, and compares medians.
"""

import json
import sys
from pathlib import Path

import rig_path  # noqa: F401
from overlap_bounds import hidden_share, pipeline_s
from rig.namespaces import missing_because
from rig.network import Network
from rig.ranks import run_ranks
from rig.shape import Link

from drivetrain_testing import Bar, Row, run_bars

_PROGRAM = Path(__file__).with_name("overlap_rank.py")
_NUM_HOSTS = 4
_LINK = Link(rate_mbit_per_s=400)
_LEAST = 0.7


def measure(*cases):
    """Returns what the first rank says of each case, with a rank on each host."""
    words = [sys.executable, str(_PROGRAM), json.dumps(cases)]
    hosts = [[rank] for rank in range(_NUM_HOSTS)]
    with Network(_NUM_HOSTS, _LINK) as network:
        text = run_ranks(network, hosts, words, timeout_s=300)
    return json.loads(text)


def rows(case):
    """Makes a bar: chunks of rows travel while others are multiplied.

    The product of one chunk cannot overlap: that of the last one to come, or of the
    first one to go.
    """

    def bar(quick):
        because = _because(quick)
        if because:
            return Row(figure=because, holds=None)
        paths = ("direct", "ring")
        each = measure(*((case, path) for path in paths))
        found = dict(zip(paths, each, strict=True))
        shares = {}
        for path, times in found.items():
            hideable = min(times["communication"], times["computation"])
            hideable -= times["computation"] / times["num_chunks"]
            shares[path] = hidden_share(times, hideable)
        return _row(shares, found)

    return bar


def first_gather(quick):
    """A bar: the first all-gathers of FSDP2 run under the loading of the batch."""
    because = _because(quick)
    if because:
        return Row(figure=because, holds=None)
    (times,) = measure(("fsdp",))
    hideable = min(times["communication"], times["computation"])
    shares = {"fsdp": hidden_share(times, hideable)}
    return _row(shares, {"fsdp": times})


def pipeline(quick):
    """A bar: 1F1B without waits for sends, beside the longest path of what must wait.

    Messages take what they would on an empty link without headers.
    """
    because = _because(quick)
    if because:
        return Row(figure=because, holds=None)
    (times,) = measure(("pipeline",))
    shares, details = {}, {}
    for order in ("plain", "eager"):
        bound = pipeline_s(
            times["num_stages"],
            times["num_microbatches"],
            forward_s=times["forward"],
            backward_s=times["backward"],
            message_s=times["message_bytes"] / _LINK.bytes_per_s,
            eager=order == "eager",
        )
        case = {**times, "overlapped": times[order], "bound": bound}
        shares[order] = hidden_share(case, times["serial"] - bound)
        details[order] = case
    return _row(shares, details)


def _row(shares, details):
    worst = min(shares, key=shares.get)
    times = details[worst]
    exact = all(each["is_exact"] for each in details.values())
    figure = (
        f"{shares[worst]:.0%} at least ({worst}: {1e3 * times['serial']:.0f} to "
        f"{1e3 * times['overlapped']:.0f} ms){'' if exact else ', NOT EXACT'}"
    )
    return Row(
        figure=figure,
        holds=exact and shares[worst] >= _LEAST,
        proven_on="namespaces",
        details={"hidden": shares, **details},
    )


def _because(quick):
    """Returns why there is nothing to measure, or None."""
    if quick:
        return "takes half a minute: name it with --only"
    return missing_because()


_BOUND = f">= {_LEAST:.0%} of the hideable time, same bits"

BARS = (
    Bar(name="overlap-all-gather", bound=_BOUND, measure=rows("gather")),
    Bar(name="overlap-reduce-scatter", bound=_BOUND, measure=rows("scatter")),
    Bar(name="overlap-first-gather", bound=_BOUND, measure=first_gather),
    Bar(name="overlap-1f1b", bound=_BOUND, measure=pipeline),
)

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
