"""Rows of torch's own tests of distributed calls, each run on ranks under a backend.

A row is a program in our words of what one test of torch checks. `run_rows` runs rows one
after the other on three ranks, under stock Gloo or under `drivetrain_comm.enable()`, and
`verdict_of` says how both compare.
"""

import faulthandler
import gc
import os
import re
import sys
import time
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module

import torch
import torch.distributed as dist

WORLD_SIZE = 3
MODULES = (
    "torch_collective_rows",
    "torch_gloo_rows",
    "torch_common_rows",
    "torch_life_rows",
    "torch_ddp_rows",
    "torch_ddp_hook_rows",
)
# A row ends within a second; one that lasts this long hangs.
MINUTE = timedelta(seconds=60)
ROW_S = 15
_BEGINS, _ENDS = "row begins: ", "row has ended"

# How far the results of another order of additions may be, in float32 and in float16.
CLOSE, CLOSE_HALF = 1e-5, 3e-3

ROWS = {}
# Of the row that runs, when it makes its groups itself.
stores = []


@dataclass(frozen=True, kw_only=True)
class Row:
    """One test of torch, as a program.

    `alone`: without a default group, which it makes itself. `fresh`: under a default group
    that is made for it. `close`: how far numbers may differ, since the order of additions
    may.
    """

    file: str
    test: str
    checks: str
    run: object
    alone: bool = False
    fresh: bool = False
    close: float = 0.0

    @property
    def name(self):
        return f"{self.file}: {self.test}"


@dataclass(frozen=True)
class Said:
    """An error: its class and those that it inherits from, and what it says."""

    kinds: tuple
    text: str = field(default="")

    def __str__(self):
        return f"{self.kinds[0]}: {self.text}"


class RowsOf:
    """Registers the rows of one file of torch's."""

    def __init__(self, file):
        self.file = file

    def __call__(self, test, checks, **options):
        def keep(run):
            self.add(test, checks, run, **options)
            return run

        return keep

    def add(self, test, checks, run, **options):
        row = Row(file=self.file, test=test, checks=checks, run=run, **options)
        assert row.name not in ROWS, row.name
        ROWS[row.name] = row


def all_rows():
    """Returns the rows by their names."""
    for name in MODULES:
        import_module(name)
    return ROWS


def error_of(function, *args, **kwargs):
    """Returns what a call raises, or that it raised nothing."""
    try:
        function(*args, **kwargs)
    # Whatever it is, it is compared.
    except Exception as error:  # noqa: BLE001
        return _said(error)
    return "no error"


def _said(error):
    kinds = tuple(kind.__name__ for kind in type(error).__mro__[:-1])
    lines = str(error).splitlines() or [""]
    # Places in C++, addresses and ports differ from run to run.
    text = re.sub(r"\[[^\]]*\.(cc|cpp|h):\d+\] ?", "", lines[0])
    text = re.sub(r"0x[0-9a-f]+|\b\d{1,3}(\.\d{1,3}){3}\S*", "_", text)
    return Said(kinds, text)


def warned_of(function, *args, **kwargs):
    """Returns what a call warns of, each text once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    return sorted({str(one.message).splitlines()[0] for one in caught})


def run_rows(kind, names):
    """Returns what each row gives on each rank; `Said` with the kind `Died` for no end."""
    from drivetrain_testing import RankError, run_ranks

    left, found = list(names), {}
    while left:
        try:
            ranks = run_ranks(
                _on_a_rank, WORLD_SIZE, kind, left, process_group=False, timeout_s=300
            )
        except RankError as error:
            *_, last = str(error).rpartition(_BEGINS)
            name = last.partition("\n")[0]
            if name not in left or _ENDS in last:
                raise
            how = f"hangs over {ROW_S} s" if "Timeout (" in last else str(error)[:60]
            found[name] = [Said(("Died",), how)] * WORLD_SIZE
            left.remove(name)
        else:
            return {**found, **{name: [rank[name] for rank in ranks] for name in left}}
    return found


def _on_a_rank(kind, names):
    return import_module("torch_rows").on_a_rank(kind, names)


def on_a_rank(kind, names):
    """Runs rows on this rank, first those under the default group."""
    rows = all_rows()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # What was imported stays: each row's end looks for what it has left.
    gc.freeze()
    if kind != "stock":
        import drivetrain_comm

        drivetrain_comm.enable(cache=False)
    if kind == "no engine on rank 1" and os.environ["RANK"] == "1":
        from drivetrain_comm.backend import _native

        _native._missing = "it was not built"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False)
    meet = Meeting(dist.PrefixStore("rows", store))
    found = {}
    shared = [n for n in names if not rows[n].alone and not rows[n].fresh]
    if shared:
        init_group(meet.own_store())
        is_tuned = type(dist.group.WORLD).__name__ == "TunedProcessGroup"
        assert is_tuned == (kind != "stock")
        for name in shared:
            found[name] = _result(rows[name], meet)
        dist.destroy_process_group()
    for name in names:
        if name not in found:
            stores.append(meet.own_store())
            if rows[name].fresh:
                init_group(stores[-1])
            found[name] = _result(rows[name], meet)
            if dist.is_initialized():
                dist.destroy_process_group()
    meet()
    time.sleep(0.1)
    return found


def init_group(store, backend="gloo", **options):
    """Makes the default group of all ranks, which meet in a store."""
    options = {"rank": int(os.environ["RANK"]), "world_size": WORLD_SIZE, **options}
    dist.init_process_group(backend, store=store, **{"timeout": MINUTE, **options})


class Meeting:
    """Where the ranks wait for each other without a process group."""

    def __init__(self, store):
        self.store, self.count = store, 0

    def own_store(self):
        """Returns a store whose keys nobody has used yet."""
        self.count += 1
        return dist.PrefixStore(f"own {self.count}", self.store)

    def __call__(self):
        self.count += 1
        key = f"{self.count}"
        if self.store.add(key, 1) == WORLD_SIZE:
            self.store.set(f"all {key}", "here")
        self.store.wait([f"all {key}"], MINUTE)


def _result(row, meet):
    meet()
    torch.manual_seed(0)
    print(_BEGINS + row.name, flush=True)
    faulthandler.dump_traceback_later(ROW_S, exit=True, file=sys.stdout)
    try:
        result = _kept(row.run())
    # The other backend may raise it as well.
    except Exception as error:  # noqa: BLE001
        result = _said(error)
    gc.collect()
    meet()
    faulthandler.cancel_dump_traceback_later()
    print(_ENDS, flush=True)
    return result


def _kept(value):
    """Returns a value with copies of its tensors, which can travel."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return value.coalesce().to_dense() if value.is_sparse else value.clone()
    if isinstance(value, dict):
        return {key: _kept(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(one) for one in value]
    return value


def verdict_of(row, stock, ours):
    """Returns `same`, `same error: OURS`, `refused: WHY` or `wrong: HOW`."""
    verdicts = {_verdict(row, *pair) for pair in zip(stock, ours, strict=True)}
    for kind in ("hangs", "wrong", "refused", "same error"):
        if found := sorted(one for one in verdicts if one.startswith(kind)):
            return found[0]
    return "same"


def _verdict(row, stock, ours):
    if isinstance(ours, Said):
        if ours.kinds[0] == "Died":
            return f"hangs: {ours.text}"
        if stock == ours:
            return "same"
        if isinstance(stock, Said) and stock.kinds[0] in ours.kinds:
            return "same" if stock.text == ours.text else f"same error: {ours.text}"
        if "DrivetrainError" in ours.kinds and not isinstance(stock, Said):
            return f"refused: {ours.text}"
        return f"wrong: {ours}, stock: {stock}"
    return "same" if _is_same(stock, ours, row.close) else f"wrong: {ours}, not {stock}"


def _is_same(one, other, close):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return torch.allclose(one, other, rtol=close, atol=close / 10, equal_nan=True)
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            _is_same(one[key], other[key], close) for key in one
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(
            _is_same(*pair, close) for pair in zip(one, other, strict=True)
        )
    if isinstance(one, Said):
        # Of the same class, or of a class of ours that is one.
        return one.kinds[0] in other.kinds and one.text == other.text
    if close and isinstance(one, float):
        return abs(one - other) <= close * max(1.0, abs(one))
    return one == other
