"""What a cluster asks an operator: whether it lives, whether it is ready, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import Metric

    from drivetrain_cloud.kubernetes.api_client import ApiClient
    from drivetrain_cloud.kubernetes.control_loop import ControlLoop

_STUCK_S = 300.0
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class HealthServer:
    """Answers `/healthz`, `/readyz` and `/metrics`; an asynchronous context manager.

    An operator that answers nothing, since its event loop hangs, or that has worked on one
    object for five minutes, is not alive. One that waits for the lead is ready.

    Args:
        port: Where it listens, on all addresses; 0 for any.
        client: Whose calls are counted.
        loops: What works, once this one leads.
        leads: Says whether it does.

    Attributes:
        port: Where it listens.
    """

    def __init__(
        self,
        port: int,
        client: ApiClient,
        loops: Sequence[ControlLoop],
        leads: Callable[[], bool],
    ) -> None:
        from prometheus_client import CollectorRegistry

        self.port = port
        self._loops, self._leads = loops, leads
        self._registry = CollectorRegistry()
        metrics: Any = _OperatorMetrics(client, loops, leads)
        self._registry.register(metrics)

    async def __aenter__(self) -> Self:
        """Listens, and returns the server."""
        from aiohttp import web
        from prometheus_client import generate_latest

        app = web.Application()
        app.router.add_get("/healthz", self._answer(self._is_stuck))
        app.router.add_get("/readyz", self._answer(self._lacks))

        async def metrics(_: Any) -> Any:
            body = generate_latest(self._registry)
            return web.Response(body=body, headers={"Content-Type": _TEXT})

        app.router.add_get("/metrics", metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, None, self.port).start()
        self.port = self.port or min(self._runner.addresses, key=len)[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listens no more."""
        await self._runner.cleanup()

    def _answer(self, fault: Callable[[], str]) -> Any:
        from aiohttp import web

        async def answer(_: Any) -> Any:
            said = fault()
            return web.Response(status=503 if said else 200, text=said or "ok")

        return answer

    def _is_stuck(self) -> str:
        longest_s = max((loop.queue.busy_s() for loop in self._loops), default=0.0)
        is_stuck = longest_s > _STUCK_S
        return f"one object is worked on for {longest_s:.0f} s" if is_stuck else ""

    def _lacks(self) -> str:
        lacks = [kind for loop in self._loops for kind in loop.unsynced()]
        return f"no list yet of {', '.join(lacks)}" if self._leads() and lacks else ""


class _OperatorMetrics:
    """Says what an operator has counted, when it is asked."""

    def __init__(
        self,
        client: ApiClient,
        loops: Sequence[ControlLoop],
        leads: Callable[[], bool],
    ) -> None:
        self._client, self._loops, self._leads = client, loops, leads

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics, as prometheus_client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        prefix = "drivetrain_operator_"
        words = "Whether this operator leads."
        yield GaugeMetricFamily(f"{prefix}leader", words, value=self._leads())
        words = "Objects by their phase."
        phases = GaugeMetricFamily(f"{prefix}objects", words, labels=["kind", "phase"])
        words = "Objects that wait to be looked at."
        waiting = GaugeMetricFamily(f"{prefix}queue_length", words, labels=["kind"])
        words = "Looks at an object, by how they have ended."
        labels = ["kind", "outcome"]
        looks = CounterMetricFamily(f"{prefix}reconciles", words, labels=labels)
        words = "Seconds that looks at an object took."
        seconds = CounterMetricFamily(
            f"{prefix}reconcile_seconds", words, labels=labels
        )
        for loop in self._loops:
            waiting.add_metric([loop.kind], len(loop.queue))
            for phase, count in loop.phases().items():
                phases.add_metric([loop.kind, phase], count)
            for outcome, count in loop.num_looks.items():
                looks.add_metric([loop.kind, outcome], count)
                seconds.add_metric([loop.kind, outcome], loop.look_s[outcome])
        yield from (phases, waiting, looks, seconds)
        words = "Calls that the API server has answered, by the status."
        calls = CounterMetricFamily(
            f"{prefix}api_calls", words, labels=["method", "status"]
        )
        for (method, status), count in self._client.num_calls.items():
            calls.add_metric([method, str(status)], count)
        yield calls
