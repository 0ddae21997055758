"""What programs get out of hardware: the constants of the cost model, all in one place.

Nine numbers were fitted, to 36 published rows that `simulate/published.yaml` sets apart
for it and to no other; `benchmarks/fit_cost_model.py` fits them again and prints them:
`matmul` and `attention` for two generations of devices, and five that all share. A tenth,
the rate at which nanotron's rows sum gradients, stands with them in `published.yaml`: it
belongs to that program and was fitted to two rows of it.

Three are no part of the fit. The rows do not tell slow links from hidden collectives that
cost much, so `link` is what NCCL's maintainers expect of eight H100: 360 of 450 GB/s
(https://github.com/NVIDIA/nccl-tests/issues/326). And `launch_s`: an eager block of
Llama launches 36 kernels forward, and takes a processor about 0.6 ms. And `channels`:
each channel of NCCL is a block of threads that the device's computing goes without
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-max-nchannels),
and a slow network feeds few. Over the slowest of the rows that calibrate, collectives
move 0.58 of what they move over links, so none of them tells what a slower one costs: in
proportion is assumed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """PhaseShares of a peak that programs reach, and costs that no data sheet lists.

    Args:
        matmul: Of the peak rate, for a product whose operands cost nothing to move.
        attention: Of the peak rate, for fused attention.
        memory: Of the memory bandwidth, for all that only moves data.
        eager: How many times the least traffic an unfused program moves.
        link: Of the links inside a node.
        network: Of the network cards.
        contention: Of the time of a collective that is hidden behind computing, what
            the computing loses meanwhile.
        channels: Of the rate of links, from where on a collective between nodes costs
            computing as much as one on links does; below, in proportion.
        straggling: What a step loses each time the number of nodes doubles, as devices
            wait for the slowest.
        launch_s: Seconds of the processor for each kernel of an eager program.
    """

    matmul: float = 0.80
    attention: float = 0.26
    memory: float = 0.724
    eager: float = 1.05
    link: float = 0.8
    network: float = 0.697
    contention: float = 0.857
    channels: float = 0.58
    straggling: float = 0.0
    launch_s: float = 1.5e-5


FITTED = {
    "A100": {"matmul": 0.872, "attention": 0.337},
    "H100": {"matmul": 0.716, "attention": 0.185},
}
"""What differs by the generation of devices; the rest is that of `Efficiency`."""

_RELATIVES = {"H200": "H100", "H800": "H100", "H20": "H100", "A800": "A100"}


def efficiency_of(kind: str) -> Efficiency:
    """Returns the constants for a kind of device, or the general ones.

    Args:
        kind: The device as its driver calls it, such as `NVIDIA H200`.

    Example:
        >>> efficiency_of("NVIDIA H200") == efficiency_of("NVIDIA H100 80GB HBM3")
        True
    """
    for name in (*FITTED, *_RELATIVES):
        if name in kind.upper():
            return dataclasses.replace(
                Efficiency(), **FITTED[_RELATIVES.get(name, name)]
            )
    return Efficiency()
