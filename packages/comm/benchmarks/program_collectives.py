"""The collectives of random programs in one rank: tensors of a seed, and torch's calls."""

import hashlib

import torch
import torch.distributed as dist


class Call:
    """One collective in one rank: its tensors, and what torch's functions take."""

    def __init__(self, run, step, key, group, ranks):
        self.run, self.step, self.key = run, step, key
        self.group, self.ranks = group, ranks
        self.place = ranks.index(run.rank)
        self.root = ranks[step.root]
        self.is_root = self.root == run.rank
        self.is_async = step.mode != "sync"
        self.common = {"group": group, "async_op": self.is_async}
        self.operation = getattr(dist.ReduceOp, step.operation)

    def tensor(self, part=0, times=1):
        """Returns one with this rank's values."""
        step, run = self.step, self.run
        size, dtype = step.size * times, getattr(torch, step.dtype)
        seed = f"{run.program.seed} {self.key} {run.rank} {part}"
        digest = hashlib.sha256(seed.encode()).digest()
        dice = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return self._laid(_values(dice, size, dtype, step, run.program.is_exact))

    def empty(self, times=1):
        """Returns one to be written."""
        dtype = getattr(torch, self.step.dtype)
        return self._laid(torch.zeros(self.step.size * times, dtype=dtype))

    def parts(self):
        """Returns a tensor for each rank of the group."""
        return [self.tensor(part) for part in range(len(self.ranks))]

    def empties(self):
        """Returns as many to be written."""
        return [self.empty() for _ in self.ranks]

    def _laid(self, plain):
        self.run.own_bytes += plain.nbytes
        layout, size = self.step.layout, plain.numel()
        if layout == "offset":
            whole = torch.zeros(size + 3, dtype=plain.dtype)
            found = whole[3:]
        elif layout == "transposed" and size > 1 and size % 2 == 0:
            found = torch.zeros(2, size // 2, dtype=plain.dtype).t()
        elif layout == "gaps" and size:
            found = torch.zeros(2 * size, dtype=plain.dtype)[::2]
        else:
            return plain
        return found.copy_(plain.view(found.shape))


def _values(dice, size, dtype, step, is_exact):
    if dtype == torch.bool:
        return torch.randint(0, 2, (size,), generator=dice).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        # Sums of integers are exact: they wrap.
        info = torch.iinfo(dtype)
        low, high = max(info.min, -(1 << 62)), min(info.max, 1 << 62)
        return torch.randint(low, high, (size,), generator=dice).to(dtype)
    if not is_exact:
        return torch.randn(size, generator=dice).to(dtype)
    if step.operation == "PRODUCT":
        chosen = torch.randint(0, 4, (size,), generator=dice)
        return torch.tensor([-2.0, -1.0, 1.0, 2.0])[chosen].to(dtype)
    return torch.randint(-8, 9, (size,), generator=dice).to(dtype)


def _all_reduce(call):
    x = call.tensor()
    return dist.all_reduce(x, op=call.operation, **call.common), [x]


def _all_reduce_coalesced(call):
    xs = [call.tensor(part) for part in range(1 + call.step.root)]
    return dist.all_reduce_coalesced(xs, op=call.operation, **call.common), xs


def _all_gather(call):
    out = call.empties()
    return dist.all_gather(out, call.tensor(), **call.common), out


def _all_gather_into_tensor(call):
    out = call.empty(len(call.ranks))
    return dist.all_gather_into_tensor(out, call.tensor(), **call.common), [out]


def _reduce(call):
    x = call.tensor()
    work = dist.reduce(x, call.root, op=call.operation, **call.common)
    return work, [x] if call.is_root else []


def _reduce_scatter(call):
    out = call.empty()
    operation = {"op": call.operation, **call.common}
    return dist.reduce_scatter(out, call.parts(), **operation), [out]


def _reduce_scatter_tensor(call):
    out, whole = call.empty(), call.tensor(times=len(call.ranks))
    operation = {"op": call.operation, **call.common}
    return dist.reduce_scatter_tensor(out, whole, **operation), [out]


def _broadcast(call):
    x = call.tensor()
    return dist.broadcast(x, call.root, **call.common), [x]


def _scatter(call):
    out, parts = call.empty(), call.parts() if call.is_root else None
    return dist.scatter(out, parts, src=call.root, **call.common), [out]


def _gather(call):
    out = call.empties() if call.is_root else None
    work = dist.gather(call.tensor(), out, dst=call.root, **call.common)
    return work, out or []


def _all_to_all(call):
    out = call.empties()
    return dist.all_to_all(out, call.parts(), **call.common), out


def _all_to_all_single(call):
    out, whole = call.empty(len(call.ranks)), call.tensor(times=len(call.ranks))
    return dist.all_to_all_single(out, whole, **call.common), [out]


def _send_recv(call):
    to = call.ranks[(call.step.root + 1) % len(call.ranks)]
    x, group = call.tensor(), call.group
    if call.is_root:
        return (dist.isend if call.is_async else dist.send)(x, to, group=group), []
    if call.run.rank != to:
        return None, []
    receive = dist.irecv if call.is_async else dist.recv
    return receive(x, call.root, group=group), [x]


def _recv_any_source(call):
    to = call.ranks[(call.step.root + 1) % len(call.ranks)]
    x, tag = call.tensor(), 1 + hash(call.key) % 1000
    if call.is_root:
        return dist.send(x, to, group=call.group, tag=tag), []
    if call.run.rank != to:
        return None, []
    dist.recv(x, group=call.group, tag=tag)
    return None, [x]


def _batch_isend_irecv(call):
    x, out, ranks = call.tensor(), call.empty(), call.ranks
    to = ranks[(call.place + 1) % len(ranks)]
    source = ranks[call.place - 1]
    pair = [dist.P2POp(dist.isend, x, to, call.group)]
    pair.append(dist.P2POp(dist.irecv, out, source, call.group))
    works = dist.batch_isend_irecv(pair)
    if not call.is_async:
        for work in works:
            work.wait()
        return None, [out]
    return works, [out]


def _barrier(call):
    return dist.barrier(**call.common), []


def _monitored_barrier(call):
    dist.monitored_barrier(call.group, timeout=call.run.timeout)
    return None, []


def _said(call):
    return {"rank": call.run.rank, "key": call.key, "text": "x" * call.step.size}


def _all_gather_object(call):
    out = [None] * len(call.ranks)
    dist.all_gather_object(out, _said(call), group=call.group)
    return None, out


def _broadcast_object_list(call):
    out = [_said(call), call.run.rank]
    dist.broadcast_object_list(out, call.root, group=call.group)
    return None, out


def _gather_object(call):
    out = [None] * len(call.ranks) if call.is_root else None
    dist.gather_object(_said(call), out, dst=call.root, group=call.group)
    return None, out or []


def _scatter_object_list(call):
    out, given = [None], [(_said(call), place) for place in call.ranks]
    given = given if call.is_root else None
    dist.scatter_object_list(out, given, src=call.root, group=call.group)
    return None, out


COLLECTIVES = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "broadcast": _broadcast,
    "scatter": _scatter,
    "gather": _gather,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "send_recv": _send_recv,
    "recv_any_source": _recv_any_source,
    "batch_isend_irecv": _batch_isend_irecv,
    "barrier": _barrier,
    "monitored_barrier": _monitored_barrier,
    "all_gather_object": _all_gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "gather_object": _gather_object,
    "scatter_object_list": _scatter_object_list,
}
