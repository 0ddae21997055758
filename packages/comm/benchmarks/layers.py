"""What tuning some of the layers only, or one after the other, would have come to."""

from drivetrain_comm._choice import STOCK

_STOCK_BUCKET_BYTES = 25 << 20


def layers(every):
    """Returns the tactics at which tuning in some way ends.

    Args:
        every: The median span of each tactic.
    """

    def best(**fixed):
        return min(
            (tactic for tactic in every if _agrees(tactic, fixed)),
            key=every.__getitem__,
        )

    start = best(algorithm=STOCK, bucket_bytes=_STOCK_BUCKET_BYTES)
    buckets = best(algorithm=STOCK)
    algorithm = best(bucket_bytes=_STOCK_BUCKET_BYTES, num_streams=1)
    second = best(bucket_bytes=buckets.bucket_bytes, num_streams=1)
    third = best(bucket_bytes=second.bucket_bytes, algorithm=second.choice.algorithm)
    return {
        "stock": start,
        "buckets": buckets,
        "algorithm": algorithm,
        "layer by layer": third,
        "joint": best(),
    }


def _agrees(tactic, fixed):
    values = {
        "bucket_bytes": tactic.bucket_bytes,
        "algorithm": tactic.choice.algorithm,
        "num_streams": tactic.choice.num_streams,
    }
    return all(values[name] == value for name, value in fixed.items())
