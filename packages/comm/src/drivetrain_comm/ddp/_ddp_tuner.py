"""DDP tuner: measures, tries and commits to the reduction plan of one DDP module."""

from __future__ import annotations

import logging
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drivetrain_comm.ddp import _cache
from drivetrain_comm.ddp._predict import Bucket
from drivetrain_comm.ddp._reduction_plan import (
    ReductionPlan,
    Trial,
    candidates,
    with_stock,
)
from drivetrain_comm.selection._choice import STOCK
from drivetrain_comm.selection._select import load_of_stock

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from drivetrain_comm.backend._process_group import TunedProcessGroup

logger = logging.getLogger(__name__)

# The first step's buckets are not the later ones', and the second one warms up.
_NUM_COLD, _NUM_PROFILED = 2, 2
_COLD_BUCKET_BYTES = 4 << 20
_WATCHED = 100
# Two windows in a row that are slower than this start a new search.
_TOO_SLOW = 1.3


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """What one step was like on this rank.

    Args:
        buckets: When each of DDP's buckets was ready, after the first.
        span_s: From the first bucket to the end of the last all-reduce.
    """

    buckets: tuple[Bucket, ...]
    span_s: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many bytes each bucket holds."""
        return tuple(bucket.size_bytes for bucket in self.buckets)


class DdpTuner:
    """Says how the gradients of each step are reduced.

    All ranks make one at the same time and feed it their own records; what is decided
    rests on the slowest rank's figures only, which all ranks share.

    Args:
        group: The ranks.

    Attributes:
        plan: For the step that begins.
        phase: `cold`, `trial` or `committed`.
        trial: The last trial, with all that it measured; None before.
    """

    _rounds: ClassVar[dict[str, Any]] = {}

    def __init__(self, group: TunedProcessGroup) -> None:
        """Measures the network, which takes a fraction of a second."""
        self._group = group
        self.phase = "cold"
        self._may_recall = group.settings.cache
        self.trial: Trial | None = None
        self.predicted: list[tuple[ReductionPlan, float]] = []
        self._course = self._run()
        self.plan = next(self._course)

    def advance(self, record: StepRecord) -> None:
        """Takes the record of a step and decides on the next one."""
        self.plan = self._course.send(record)

    def _run(self) -> Generator[ReductionPlan, StepRecord, None]:
        while True:
            self._measure()
            cold = self._cold()
            if not self._group.settings.tune:
                self.phase = "committed"
                while True:
                    yield cold
            yield from self._search(cold)
            yield from self._watch()

    def _search(
        self, cold: ReductionPlan
    ) -> Generator[ReductionPlan, StepRecord, None]:
        self.phase = "cold"
        for _ in range(_NUM_COLD):
            yield cold
        records: list[StepRecord] = []
        while len(records) < _NUM_PROFILED:
            records.append((yield cold))
        self.predicted = self._predict(self._typical_buckets(records))
        known = self._known(records[-1])
        if known is not None:
            self.trial = Trial(plans=[known])
            self._say("as in an earlier run")
            return
        self.phase = "trial"
        plans = [plan for plan, _ in self.predicted]
        self.trial = Trial(plans=plans, **self._rounds)
        while self.trial.winner is None:
            spans = []
            for plan in self.trial.next_steps():
                record = yield plan
                spans.append(record.span_s)
            self.trial.record(self._agree(spans))
        self._keep(self.trial, records[-1].sizes)
        settings = self._group.settings
        given = settings.schedule or settings.algorithm
        more = ", of which only the size of buckets was open" if given else ""
        self._say(f"the fastest of those tried{more}")

    def _measure(self) -> None:
        self._group.measure_network()

    def _agree(self, values: Sequence[float]) -> list[float]:
        return self._group.agree_on_most(values)

    def _predict(self, buckets: list[Bucket]) -> list[tuple[ReductionPlan, float]]:
        group = self._group
        found = candidates(buckets, group.loads, group.network, group.settings)
        stock = load_of_stock(group.transport.hosts)
        return with_stock(found, buckets, stock, group.network, group.settings)

    def _say(self, because: str) -> None:
        assert self.trial is not None
        if self._group.rank() == 0:
            logger.info("gradients are reduced by %s: %s", self.trial.winner, because)

    def _watch(self) -> Generator[ReductionPlan, StepRecord, None]:
        assert self.trial is not None
        winner = self.trial.winner
        assert winner is not None
        self.phase = "committed"
        usual, num_slow, now = 0.0, 0, 0.0
        while num_slow < 2:
            records: list[StepRecord] = []
            while len(records) < _WATCHED:
                records.append((yield winner))
            median = statistics.median(record.span_s for record in records)
            (now,) = self._agree([median])
            usual = usual or now
            num_slow = num_slow + 1 if now > usual * _TOO_SLOW else 0
        self._may_recall = False
        logger.info("all-reduces take %.3g s, not %.3g s any more", now, usual)

    def _known(self, record: StepRecord) -> ReductionPlan | None:
        """Returns what an earlier run found on these hosts, if it may still hold."""
        if not self._may_recall:
            return None
        text = ""
        if self._group.rank() == 0:
            found = _cache.load(self._name_of(record.sizes))
            if found and _cache.is_alike(found.network, self._group.network):
                text = _cache.dump_plan(found.plan)
        text = self._group.tell(text)
        plan = _cache.load_plan(text) if text else None
        algorithms = {*self._group.loads, STOCK}
        return plan if plan and plan.choice.algorithm in algorithms else None

    def _keep(self, trial: Trial, sizes: Sequence[int]) -> None:
        winner = trial.winner
        assert winner is not None
        if self._group.rank() == 0 and self._group.settings.cache:
            found = _cache.Found(plan=winner, network=self._group.network)
            _cache.save(self._name_of(sizes), found)

    def _name_of(self, sizes: Sequence[int]) -> str:
        transport = self._group.transport
        settings = str(self._group.settings)
        return _cache.fingerprint(transport.hostnames, transport.hosts, sizes, settings)

    def _cold(self) -> ReductionPlan:
        """Returns a good guess: what the model says of middling messages."""
        size_mb = self._group.settings.bucket_mb
        size = int(size_mb * (1 << 20)) if size_mb else _COLD_BUCKET_BYTES
        return ReductionPlan(bucket_bytes=size, choice=self._group.choose(size))

    def _typical_buckets(self, records: list[StepRecord]) -> list[Bucket]:
        last = records[-1].buckets
        same = [r.buckets for r in records if len(r.buckets) == len(last)]
        # Disturbances only ever make a gradient later.
        ready = [
            min(bucket.ready_s for bucket in column)
            for column in zip(*same, strict=True)
        ]
        agreed = self._agree(ready)
        return [
            Bucket(ready_s=at, size_bytes=bucket.size_bytes)
            for at, bucket in zip(agreed, last, strict=True)
        ]
