"""What of a time could be hidden: pure functions of measured times."""


def hidden_share(times, hideable_s):
    """Returns which part of the hideable time an overlapped run saves.

    Args:
        times: Seconds of the `serial` and of the `overlapped` run.
        hideable_s: What the best overlap would save.

    Raises:
        ValueError: There is nothing to hide.

    >>> hidden_share({"serial": 10, "overlapped": 7}, 4)
    0.75
    """
    if hideable_s <= 0:
        raise ValueError(f"there is nothing to hide: {hideable_s} s of {times}")
    return (times["serial"] - times["overlapped"]) / hideable_s


def pipeline_s(
    num_stages, num_microbatches, *, forward_s, backward_s, message_s, eager=False
):
    """Returns the longest path through 1F1B if nothing waits but for its inputs.

    A stage computes in the order of 1F1B; a message leaves as soon as it is made and
    the port of its host is free, which activations and gradients share.

    >>> pipeline_s(1, 3, forward_s=1, backward_s=2, message_s=9)
    9
    >>> pipeline_s(2, 2, forward_s=1, backward_s=1, message_s=0)
    6
    """
    orders = [
        _order(2 * depth - 1 if eager else depth, num_microbatches)
        for depth in range(num_stages, 0, -1)
    ]
    at = [0] * num_stages  # the next computation of each stage
    free = [0] * num_stages  # when a stage can compute
    port = [0] * num_stages  # when a host's port can send
    there = {("F", 0, k): 0 for k in range(num_microbatches)}
    there |= {("B", num_stages - 1, k): 0 for k in range(num_microbatches)}
    while any(at[s] < len(orders[s]) for s in range(num_stages)):
        # The computation that ends first, so that ports send in the order of time.
        ends = []
        for stage in range(num_stages):
            if at[stage] == len(orders[stage]):
                continue
            kind, batch = orders[stage][at[stage]]
            if (kind, stage, batch) in there:
                start = max(free[stage], there[kind, stage, batch])
                length = forward_s if kind == "F" else backward_s
                ends.append((start + length, stage, kind, batch))
        end, stage, kind, batch = min(ends)
        free[stage] = end
        at[stage] += 1
        to = stage + 1 if kind == "F" else stage - 1
        if 0 <= to < num_stages:
            port[stage] = max(port[stage], end) + message_s
            there[kind, to, batch] = port[stage]
    return max(free)


def _order(depth, num_microbatches):
    """Returns the computations of a stage: forwards ahead, then one and one."""
    ahead = min(depth, num_microbatches)
    order = [("F", k) for k in range(ahead)]
    for k in range(num_microbatches):
        order.append(("B", k))
        if ahead + k < num_microbatches:
            order.append(("F", ahead + k))
    return order
