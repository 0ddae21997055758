"""Whoever follows the objects of a kind says what keeps it from it, now and then."""

import asyncio

from drivetrain_cloud.kubernetes import informer as informer_module
from drivetrain_cloud.kubernetes.api_client import ApiError
from drivetrain_cloud.kubernetes.informer import Informer


class WithoutKinds:
    """An API server that does not know a kind until it was asked for it often enough."""

    def __init__(self, num_refusals):
        self.num_left = num_refusals

    async def list(self, kind, **_):
        self.num_left -= 1
        if self.num_left >= 0:
            message = f"GET /{kind}: 404 page not found"
            raise ApiError(message, status=404)
        return [], "1"

    async def watch(self, kind, version, **_):
        await asyncio.Event().wait()
        yield


def test_kind_that_a_cluster_does_not_know_is_said_once_with_what_to_do(
    monkeypatch, caplog
):
    monkeypatch.setattr(informer_module, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(informer_module, "_MOST_WAIT_S", 0.001)

    async def follow():
        informer = Informer(WithoutKinds(5), "ElasticJob", lambda _: None)
        running = asyncio.create_task(informer.run())
        await informer.is_synced.wait()
        running.cancel()

    asyncio.run(follow())
    (said,) = [one.getMessage() for one in caplog.records]
    assert "the watch of ElasticJob goes on after: GET /ElasticJob: 404" in said
    assert "`drivetrain-cloud operator --definitions`" in said
