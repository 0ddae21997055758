"""Hears, for an agent, that its node will be taken away."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from drivetrain_core import DrivetrainError
from drivetrain_core.services import get_service
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_core.services import CapacityNotice, CloudNotices, NoticeWatch
    from drivetrain_elastic._agent._config import AgentConfig

logger = logging.getLogger(__name__)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0


class NoticeListener:
    """Watches what the cloud says of this node; used from one event loop.

    Args:
        config: Which cloud, how often, and what is done.
        heard: Takes each notice that is news, for the master.
    """

    def __init__(
        self, config: AgentConfig, heard: Callable[[pb.CapacityNotice], None]
    ) -> None:
        self._config = config
        self._heard = heard
        self._notice: CapacityNotice | None = None
        self._watch: NoticeWatch | None = None

    def message(self) -> pb.CapacityNotice | None:
        """Returns what a master has to know; None if nothing stands."""
        notice = self._notice
        if notice is None or notice.withdrawn:
            return None
        return self._message(notice)

    def _message(self, notice: CapacityNotice) -> pb.CapacityNotice:
        return pb.CapacityNotice(
            within_s=0.0 if notice.withdrawn else notice.remaining_s(),
            reason=notice.reason,
            is_withdrawn=notice.withdrawn,
            is_only_told=self._config.on_notice == "tell",
        )

    async def run(self) -> None:
        """Finds the cloud, and listens to it until this is cancelled."""
        if self._config.notices == "none":
            return
        loop = asyncio.get_running_loop()

        def publish(notice: CapacityNotice) -> None:
            loop.call_soon_threadsafe(self._take, notice)

        clouds: CloudNotices = get_service("cloud_notices")
        wait_s = _FIRST_WAIT_S
        while self._watch is None:
            self._watch = await asyncio.to_thread(
                clouds.open,
                self._config.notices,
                self._config.node,
                publish,
                interval_s=self._config.notices_s,
            )
            if self._watch is None:
                logger.log(
                    logging.WARNING if wait_s == _FIRST_WAIT_S else logging.DEBUG,
                    "no cloud answers here, which would say that this node is taken away",
                )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        logger.info("%s says if this node is taken away", self._watch.name)
        self._watch.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._watch.stop()

    def _take(self, notice: CapacityNotice) -> None:
        self._notice = notice
        if notice.withdrawn:
            logger.warning("this node is not taken away: %s", notice.reason)
        else:
            left_s = notice.deadline_s - time.monotonic()
            logger.warning(
                "this node will be taken away in %.0f s: %s", left_s, notice.reason
            )
        self._heard(self._message(notice))

    async def acknowledge(self) -> None:
        """Tells the cloud, if it asks, that this node is no longer needed."""
        if self._watch is None:
            return
        try:
            await asyncio.to_thread(self._watch.acknowledge)
        # The node goes in any case, a little later.
        except (OSError, DrivetrainError) as error:
            logger.warning("the cloud was not told that this node may go: %s", error)
