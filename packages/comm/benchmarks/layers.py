"""What tuning some of the layers only, or one after the other, would have come to."""

from drivetrain_comm.selection._choice import STOCK

_STOCK_BUCKET_BYTES = 25 << 20


def layers(every):
    """Returns the plans at which tuning in some way ends.

    Args:
        every: The median span of each plan.
    """

    def best(**fixed):
        return min(
            (plan for plan in every if _agrees(plan, fixed)),
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


def _agrees(plan, fixed):
    values = {
        "bucket_bytes": plan.bucket_bytes,
        "algorithm": plan.choice.algorithm,
        "num_streams": plan.choice.num_streams,
    }
    return all(values[name] == value for name, value in fixed.items())
