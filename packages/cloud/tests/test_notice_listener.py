"""An agent's listener to what its cloud says."""

from __future__ import annotations

import asyncio

import pytest

from drivetrain_cloud.notices import Aws, FakeCloud, service
from drivetrain_core import ProgramError
from drivetrain_elastic import AgentConfig
from drivetrain_elastic._agent import _notice_listener
from drivetrain_elastic._agent._notice_listener import NoticeListener


def listen(config, story):
    """Runs a story beside a listener; returns what the master would be told."""
    told = asyncio.Queue()
    listener = NoticeListener(config, told.put_nowait)

    async def main():
        run = asyncio.create_task(listener.run())
        try:
            await asyncio.wait_for(story(listener, told), 60.0)
        finally:
            run.cancel()

    asyncio.run(main())


def config_of(notices, **options):
    return AgentConfig(node="a", notices=notices, notices_s=0.02, **options)


def test_a_notice_and_its_end_are_told():
    with FakeCloud() as cloud:

        async def story(listener, told):
            assert listener.message() is None
            cloud.reclaim(120.0)
            notice = await told.get()
            assert 100.0 < notice.within_s <= 120.0
            assert "AWS" in notice.reason
            assert not notice.is_only_told
            assert listener.message().within_s <= notice.within_s
            cloud.withdraw()
            assert (await told.get()).is_withdrawn
            assert listener.message() is None

        listen(config_of(f"aws={cloud.url}"), story)


def test_a_supervisor_is_only_told_and_the_cloud_hears_that_the_node_may_go():
    with FakeCloud() as cloud:

        async def story(listener, told):
            await listener.acknowledge()
            cloud.reclaim(60.0)
            assert (await told.get()).is_only_told
            await listener.acknowledge()
            assert cloud.started == ["ours"]

        listen(config_of(f"azure={cloud.url}", on_notice="tell"), story)


def test_a_cloud_that_is_not_there_yet_is_looked_for_again(monkeypatch):
    with FakeCloud() as cloud:
        found = [None, None, Aws(cloud.url)]
        monkeypatch.setattr(service, "find_cloud", lambda: found.pop(0))
        monkeypatch.setattr(_notice_listener, "_FIRST_WAIT_S", 0.01)
        cloud.reclaim(60.0)

        async def story(_, told):
            assert (await told.get()).within_s > 0
            assert found == []

        listen(config_of("auto"), story)


def test_nobody_is_asked_unless_somebody_is_named():
    async def story(listener, told):
        await listener.run()
        assert told.empty()
        await listener.acknowledge()

    listen(config_of("none"), story)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"notices": "ibm"}, "'none', 'auto' or a cloud: expected one of"),
        ({"notices": "aws=ftp://127.0.0.1"}, "'none', 'auto' or a cloud"),
        ({"on_notice": "hide"}, "on_notice must be 'save' or 'tell'"),
        ({"notices_s": 0.0}, "notices_s must be at least 0.01"),
        ({"notices_s": float("nan")}, "notices_s must be at least"),
    ],
)
def test_a_config_that_nobody_can_follow_is_refused(options, words):
    with pytest.raises(ProgramError, match=words):
        AgentConfig(**options)
