"""The contract of what asks a node's cloud."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from drivetrain_core.services.cloud_notices import CloudNotices
from drivetrain_testing._clauses import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_core.services.capacity_notice import CapacityNotice


def check_cloud_notices(
    service: CloudNotices,
    source: str,
    reclaim: Callable[[], object],
    withdraw: Callable[[], object],
    timeout_s: float = 60.0,
) -> None:
    """Checks that a service tells what a cloud says of a node.

    Args:
        service: What is checked.
        source: A cloud that answers here, as `service.check` takes it.
        reclaim: Lets that cloud say that this node will be taken away.
        withdraw: Lets it say no longer so.
        timeout_s: How long a notice may take to be heard, in seconds.

    Raises:
        AssertionError: A clause of the contract is broken.
    """
    require(isinstance(service, CloudNotices), "a service has check and open")
    service.check("auto")
    service.check(source)
    try:
        service.check("no cloud of this name")
    except ValueError:
        pass
    else:
        require(False, "a cloud that is not known is a ValueError")
    heard: queue.Queue[CapacityNotice] = queue.Queue()
    watch = service.open(source, "a", heard.put, interval_s=0.05)
    assert watch is not None, "a cloud that was named has a watch"
    watch.acknowledge()
    watch.start()
    try:
        reclaim()
        notice = heard.get(timeout=timeout_s)
        require(
            notice.node == "a" and not notice.withdrawn and bool(notice.reason),
            "a notice names the node and says why",
        )
        withdraw()
        require(
            heard.get(timeout=timeout_s).withdrawn,
            "what a cloud says no longer is withdrawn",
        )
    finally:
        watch.stop()
