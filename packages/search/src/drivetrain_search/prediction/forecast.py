"""Forecasts of a plan's peak memory and step time, which prune and order trials.

The parent's side: fake runs happen in a child process, once a structure; what a plan
adds to its structure is arithmetic. Nothing here raises into the search: what cannot
be forecast is a `Forecast` without numbers that says why.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from drivetrain_search.prediction.memory_model import (
    Forecast,
    Layout,
    Structure,
    along_size,
    predict_memory,
)
from drivetrain_search.prediction.time_model import (
    Collective,
    Rates,
    StepTime,
    collective_time_s,
    predict_time,
)
from drivetrain_search.process.payload import import_path
from drivetrain_search.process.spawn import Processes, RankFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_core import Choice, Config, Context, Measurement


logger = logging.getLogger(__name__)

_ESTIMATOR = "drivetrain_search.prediction.estimator"
_PROBES = "drivetrain_search.prediction.probes"

# What no fake run needs to see: the arithmetic knows it, or it changes no tensor.
_NO_STRUCTURE = frozenset(
    {
        "compile",
        "cpu_threads",
        "data_loading",
        "ddp",
        "fsdp",
        "host_allocator",
        "micro_batch",
        "optimizer_impl",
    }
)
_MAX_DEATHS = 3
# Of the time limit, what is left to end a child that did not answer.
_IN_TIME = 0.9
_MIB = 2**20


class Forecaster:
    """Forecasts plans of one shipped program; use it as a context.

    Args:
        payload: The path of the shipped program.
        folder: A private folder.
        context: The facts that plans are judged against.
        timeout_s: Seconds that one answer may take; a child that takes longer is
            killed, and no other is started.
        device: Whose rates are measured, as torch names it; the first of the context's
            type by default.

    Attributes:
        overhead_bytes: Memory of a trial beside its tensors, once calibrated.
        timeout_s: What the next answer may take.

    Not thread-safe. The child is started by the first question, never before, and
    rests between questions: it does not disturb a trial that is being measured.
    """

    def __init__(
        self,
        payload: Path,
        folder: Path,
        context: Context,
        *,
        timeout_s: float = 30.0,
        device: str = "",
    ) -> None:
        """Starts nothing yet."""
        self.overhead_bytes = 0
        self._payload = payload
        self._folder = folder
        self._context = context
        self._device = device or context.device.type
        self.timeout_s = timeout_s
        self._processes: Processes | None = None
        self._deaths = 0
        self._broken = ""
        self._structures: dict[Any, Structure | str] = {}
        self._rates: dict[int, Rates | None] = {}
        self._all_reduce: Collective | None = None
        self._probed_ranks = False
        self._factor = 1.0
        self._waiting_s = 0.0

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the child."""
        self._end()

    @property
    def rates(self) -> Rates | None:
        """What the device does with the user's number of threads, if it is known."""
        return self._rates_with(self._context.device.num_threads)

    def calibrate(self, choices: Sequence[Choice], measurement: Measurement) -> None:
        """Learns from the baseline's trial what estimates leave out.

        Args:
            choices: The baseline.
            measurement: How it ran.
        """
        self._factor, self._waiting_s = 1.0, 0.0
        found = self.forecast(choices)
        if found.peak_bytes is not None:
            self.overhead_bytes = max(
                0, measurement.peak_memory_bytes - found.peak_bytes
            )
        if found.step_time_s:
            step_s = measurement.step_time_s
            self._waiting_s = step_s * measurement.data_share
            self._factor = (step_s - self._waiting_s) / found.step_time_s

    def forecast(self, choices: Sequence[Choice]) -> Forecast:
        """Returns what is expected of a plan; it never raises."""
        try:
            return self._forecast(tuple(choices))
        except Exception as error:
            # It prunes and orders: without it, the search still finds its plan.
            logger.exception("no forecast of a plan")
            return Forecast(because=f"{type(error).__name__}: {error}")

    def _forecast(self, choices: tuple[Choice, ...]) -> Forecast:
        layout = layout_of(choices, self._context)
        num = int(_config(choices, "micro_batch").get("num", 1) or 1)
        whole = max(1, self._context.local_batch)
        structure = self._structure(structure_of(choices), whole, num)
        if isinstance(structure, str):
            return Forecast(because=structure)
        size = math.ceil(whole / num)
        chosen = bool(_config(choices, "optimizer_impl"))
        if structure.foreach and not chosen:
            layout = dataclasses.replace(layout, foreach=True)
        memory = predict_memory(structure, size, layout)
        found = self._time(choices, structure, size, num, layout)
        likely = best = None
        if found is not None:
            likely = self._factor * found.likely_s + self._waiting_s
            # The wait for data may hide.
            best = self._factor * found.optimistic_s
        return dataclasses.replace(
            memory, step_time_s=likely, optimistic_step_time_s=best
        )

    def _time(
        self,
        choices: tuple[Choice, ...],
        structure: Structure,
        size: int,
        num: int,
        layout: Layout,
    ) -> StepTime | None:
        threads = _config(choices, "cpu_threads").get("num")
        own = self._context.device.num_threads
        rates = self._rates_with(threads if isinstance(threads, int) else own)
        if rates is None:
            return None
        states = structure.states
        bucket = _config(choices, "ddp").get("bucket_cap_mb", 25)
        assert isinstance(bucket, int)
        buckets = math.ceil(states.gradients / (bucket * _MIB))
        collective_s = collective_time_s(
            rates.all_reduce,
            world_size=layout.world_size,
            data_parallel=layout.data_parallel,
            gradient_bytes=states.gradients,
            parameter_bytes=states.parameters,
            calls=buckets if layout.data_parallel == "ddp" else states.num_blocks + 1,
            reshard=layout.reshard,
        )
        return predict_time(
            along_size(structure.passes, size).work,
            structure.optimizer_work,
            rates,
            num_micro_batches=num,
            compiled=layout.compiled,
            fused=layout.fused or layout.foreach,
            collective_s=collective_s,
        )

    def _structure(
        self, choices: tuple[Choice, ...], whole: int, num: int
    ) -> Structure | str:
        sizes = (whole,) if num == 1 else _two_sizes(whole)
        key = (choices, sizes)
        if key not in self._structures:
            answer = self._ask(
                {
                    "ask": "structure",
                    "choices": [(c.name, dict(c.config)) for c in choices],
                    "sizes": sizes,
                    "whole": whole,
                }
            )
            because = answer.get("because")
            self._structures[key] = because or Structure.from_dict(answer["structure"])
        return self._structures[key]

    def _rates_with(self, num_threads: int) -> Rates | None:
        if num_threads not in self._rates:
            question = {"ask": "rates", "device": self._device}
            answer = self._ask({**question, "num_threads": num_threads})
            rates = None
            if "rates" in answer:
                rates = dataclasses.replace(
                    Rates.from_dict(answer["rates"]), all_reduce=self._between_ranks()
                )
            self._rates[num_threads] = rates
        return self._rates[num_threads]

    def _between_ranks(self) -> Collective | None:
        """Returns what an all-reduce costs between this job's ranks on a CPU."""
        size = self._context.world.size
        if self._probed_ranks or size == 1 or self._context.device.type != "cpu":
            return self._all_reduce
        self._probed_ranks = True
        folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=self._folder))
        limit_s = self.timeout_s * _IN_TIME
        spec = folder / "spec.json"
        fields = {
            "store": str(folder / "store"),
            "world_size": size,
            "timeout_s": limit_s,
        }
        spec.write_text(json.dumps(fields), encoding="utf-8")
        try:
            with Processes(_PROBES, spec, size, folder, {}) as processes:
                answers = processes.receive(time.monotonic() + limit_s)
            slowest = max(answers, key=lambda a: float(a["beta_s_per_byte"]))
            self._all_reduce = Collective(**slowest)
        except (RankFailure, OSError) as failure:
            logger.info("no cost of an all-reduce: %s", failure)
        return self._all_reduce

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns the child's answer, or why there is none under `because`."""
        if self._broken:
            return {"because": self._broken}
        deadline = time.monotonic() + self.timeout_s * _IN_TIME
        try:
            if self._processes is None:
                self._processes = self._started()
            self._processes.send(question)
            answer = self._processes.receive(deadline)[0]
        except (RankFailure, OSError) as failure:
            self._end()
            return {"because": self._explained(failure)}
        if "because" in answer:
            logger.info("no forecast: %s", answer["because"])
        return answer

    def _explained(self, failure: RankFailure | OSError) -> str:
        if isinstance(failure, RankFailure) and failure.kind == "timeout":
            because = f"the estimate took longer than {self.timeout_s:g} s"
            self._broken = f"{because} for a plan before"
            logger.info("no more forecasts: %s", because)
            return because
        because = f"the process of the estimate ended: {failure}"
        self._deaths += 1
        if self._deaths >= _MAX_DEATHS:
            self._broken = because
            logger.info("no more forecasts: %s", because)
        return because

    def _started(self) -> Processes:
        folder = Path(tempfile.mkdtemp(prefix="forecast-", dir=self._folder))
        spec = folder / "spec.json"
        fields = {
            "payload": str(self._payload),
            "import_path": import_path(),
            "num_threads": max(1, self._context.device.num_threads),
        }
        spec.write_text(json.dumps(fields), encoding="utf-8")
        return Processes(_ESTIMATOR, spec, 1, folder, {})

    def _end(self) -> None:
        if self._processes is not None:
            self._processes.kill()
            self._processes = None


def structure_of(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Returns the part of a plan that a fake run must see.

    Example:
        >>> from drivetrain_core import Choice
        >>> plan = [Choice("cpu_threads", {"num": 2}), Choice("channels_last", {})]
        >>> [choice.name for choice in structure_of(plan)]
        ['channels_last']
    """
    return tuple(choice for choice in choices if choice.name not in _NO_STRUCTURE)


def layout_of(choices: Sequence[Choice], context: Context) -> Layout:
    """Returns the part of a plan that arithmetic adds to a fake run."""
    names = {choice.name for choice in choices}
    parallel = next((n for n in ("ddp", "fsdp") if n in names), "")
    fsdp = _config(choices, "fsdp")
    group = fsdp.get("shard_size")
    kind = _config(choices, "optimizer_impl").get("kind")
    return Layout(
        world_size=context.world.size,
        data_parallel=parallel,
        shards=group if isinstance(group, int) else context.world.size,
        reshard=fsdp.get("zero", 3) == 3,
        foreach=kind == "foreach",
        fused=kind == "fused",
        compiled="compile" in names,
    )


def _two_sizes(whole: int) -> tuple[int, ...]:
    """Returns two sizes of a micro-batch, or one where the batch has no two."""
    half = max(1, whole // 2)
    quarter = max(1, whole // 4)
    return (half,) if half == quarter else (half, quarter)


def _config(choices: Sequence[Choice], name: str) -> Config:
    return next((choice.config for choice in choices if choice.name == name), {})
