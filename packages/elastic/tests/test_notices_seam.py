"""What an agent asks for notices: the service of another package, or none."""

import asyncio

import pytest

from drivetrain_core import ProgramError
from drivetrain_core.services import CapacityNotice
from drivetrain_elastic import AgentConfig
from drivetrain_elastic._agent import _config, _notice_listener
from drivetrain_elastic._agent._notice_listener import NoticeListener


class Watch:
    """A watch that tells of one notice at once."""

    name = "a cloud"

    def __init__(self, node, publish):
        self.node, self.publish, self.calls = node, publish, []

    def start(self):
        notice = CapacityNotice.within(60.0, node=self.node, reason="reclaimed")
        self.publish(notice)

    def stop(self):
        self.calls.append("stop")

    def acknowledge(self):
        self.calls.append("acknowledge")
        raise OSError("nobody answers")


class Service:
    """A service that finds its cloud at the second try."""

    def __init__(self):
        self.opened, self.watch = [], None

    def check(self, source):
        if source != "auto":
            raise ValueError("only auto")

    def open(self, source, node, publish, *, interval_s):
        self.opened.append((source, node, interval_s))
        if len(self.opened) > 1:
            self.watch = Watch(node, publish)
        return self.watch


@pytest.fixture
def service(monkeypatch):
    found = Service()
    for module in (_config, _notice_listener):
        monkeypatch.setattr(module, "get_service", lambda name: found)
    monkeypatch.setattr(_notice_listener, "_FIRST_WAIT_S", 0.01)
    return found


def test_notice_of_a_service_is_told_to_the_master(service):
    told = asyncio.Queue()
    config = AgentConfig(node="a", notices="auto", notices_s=0.02)

    async def main():
        listener = NoticeListener(config, told.put_nowait)
        run = asyncio.create_task(listener.run())
        notice = await asyncio.wait_for(told.get(), 60.0)
        assert (notice.reason, notice.is_withdrawn) == ("reclaimed", False)
        assert 0 < notice.within_s <= 60.0
        await listener.acknowledge()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    asyncio.run(main())
    assert service.opened == [("auto", "a", 0.02)] * 2
    assert service.watch.calls == ["acknowledge", "stop"]


@pytest.mark.usefixtures("service")
def test_source_that_the_service_does_not_know_is_refused():
    with pytest.raises(ProgramError, match="'none', 'auto' or a cloud: only auto"):
        AgentConfig(notices="mine")


def test_without_a_package_that_asks_clouds_it_is_named(monkeypatch):
    from drivetrain_core.services import NoCloud

    monkeypatch.setattr(_config, "get_service", lambda name: NoCloud())
    with pytest.raises(ProgramError, match="pip install drivetrain-cloud"):
        AgentConfig(notices="auto")
