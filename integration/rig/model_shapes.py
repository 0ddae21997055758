"""Shapes of models: the sizes of their tensors in order, and when gradients are ready."""

from __future__ import annotations

from dataclasses import dataclass

# Backward takes twice as long as forward, as a rule.
FORWARD_SHARE = 1 / 3
BYTES_PER_VALUE = 4
_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Blocks that compute one after another, each with some tensors.

    Args:
        blocks: The numbers of values of the tensors of each block, in forward order.
        weights: How long each block computes, in relation to the others.
    """

    blocks: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...]

    @property
    def num_values(self):
        """How many parameters there are."""
        return sum(map(sum, self.blocks))

    @property
    def size_bytes(self):
        """How large they are in float32."""
        return self.num_values * BYTES_PER_VALUE

    def seconds(self, compute_s):
        """Forward and backward seconds of each block when a step computes so long."""
        unit = compute_s / sum(self.weights)
        forward = [unit * weight * FORWARD_SHARE for weight in self.weights]
        return [(one, one * (1 / FORWARD_SHARE - 1)) for one in forward]

    def gradients(self, compute_s):
        """When which gradients are ready: pairs of seconds and bytes, by time."""
        seconds = self.seconds(compute_s)
        now = sum(forward for forward, _ in seconds)
        found = []
        for sizes, (_, backward) in zip(
            reversed(self.blocks), reversed(seconds), strict=True
        ):
            now += backward
            found.append((now, sum(sizes) * BYTES_PER_VALUE))
        return found


def _even():
    return ModelShape(blocks=((_MILLION,),) * 12, weights=(1.0,) * 12)


def _embedding():
    """A large table whose gradient comes last, and which computes nearly nothing."""
    blocks = ((6 * _MILLION,), *((_MILLION // 4,) for _ in range(12)))
    return ModelShape(blocks=blocks, weights=(0.1, *(1.0 for _ in range(12))))


def _many():
    """53 blocks of a weight and two vectors: channels double, and so do the blocks."""
    stages = [(3, 32), (12, 48), (16, 96), (18, 160), (4, 256)]
    blocks = [
        (9 * channels * channels // (1 + i % 2), channels, channels)
        for count, channels in stages
        for i in range(count)
    ]
    return ModelShape(blocks=tuple(blocks), weights=(1.0,) * len(blocks))


SHAPES = {"even": _even(), "embedding": _embedding(), "many": _many()}
