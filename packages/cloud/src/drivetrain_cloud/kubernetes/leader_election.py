"""Of several operators one works: who leads is said by a Lease."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.api_client import ApiError
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_cloud.kubernetes.api_client import ApiClient

logger = logging.getLogger(__name__)

_Item = dict[str, Any]
_CONFLICT, _NOT_FOUND = 409, 404


class LeaderElection:
    """Takes part in the election of a leader; of one event loop.

    A leader that is not renewed is followed by another one after `lease_s` of the other's
    own clock: clocks are not compared. One that cannot renew stops after `renew_by_s`,
    which is less.

    Args:
        client: Of the API server.
        namespace: Of the Lease.
        name: Of the Lease.
        identity: Of this candidate; no other one has it.
        lease_s: How long a leader that says nothing is waited for.
        renew_by_s: How long a leader may fail to renew before it stops.
        retry_s: How often it is tried.
        clock: Seconds that only grow.

    Raises:
        ProgramError: A leader would stop too late, or could never renew.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str = "drivetrain-operator",
        identity: str,
        lease_s: float = 15.0,
        renew_by_s: float = 10.0,
        retry_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < retry_s < renew_by_s < lease_s:
            message = (
                "an election needs 0 < retry_s < renew_by_s < lease_s, got "
                f"{retry_s}, {renew_by_s} and {lease_s}"
            )
            raise ProgramError(message)
        self._client = client
        self._where = (namespace, name)
        self._identity = identity
        self._lease_s, self._renew_by_s, self._retry_s = lease_s, renew_by_s, retry_s
        self._clock = clock
        self._seen: tuple[object, float] = (None, 0.0)
        self._has_other = False
        self._renewed_s = -math.inf

    def left_s(self) -> float:
        """Returns for how many seconds this one still leads, unless it renews."""
        return self._renewed_s + self._renew_by_s - self._clock()

    async def acquire(self) -> None:
        """Waits until this one leads."""
        while not await self._try():
            await asyncio.sleep(self._retry_s)
        logger.info("%s leads", self._identity)

    async def hold(self) -> None:
        """Renews the lease; returns once this one leads no more."""
        while self.left_s() > 0:
            await asyncio.sleep(self._retry_s)
            try:
                async with asyncio.timeout(max(0.0, self.left_s())):
                    if not await self._try() and self._has_other:
                        # Somebody took it, or made it anew: it may work already.
                        break
            except TimeoutError:
                break
        logger.warning("%s leads no more", self._identity)

    async def release(self) -> None:
        """Gives the lease up, so that another one need not wait."""
        try:
            lease = await self._client.get("Lease", *self._where)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self._identity:
                lease["spec"] = {**spec, "holderIdentity": ""}
                await self._client.update("Lease", lease)
        except ApiError as error:
            logger.info("the lease was not given up: %s", error)

    async def _try(self) -> bool:
        self._has_other, began_s = False, self._clock()
        try:
            took = await self._try_once()
        except ApiError as error:
            logger.info("the lease cannot be had: %s", error)
            return False
        if took:
            self._renewed_s = began_s
        return took

    async def _try_once(self) -> bool:
        namespace, name = self._where
        now = self._client.server_time().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours: _Item = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._lease_s)),
            "renewTime": now,
        }
        try:
            lease = await self._client.get("Lease", namespace, name)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            spec = {**ours, "acquireTime": now, "leaseTransitions": 0}
            await self._client.create("Lease", _lease(namespace, name, spec))
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self._identity and not self._is_silent(lease):
            self._has_other = True
            return False
        if holder != self._identity:
            count = spec.get("leaseTransitions") or 0
            ours |= {"acquireTime": now, "leaseTransitions": count + 1}
        lease["spec"] = {**spec, **ours}
        # Of two that try at once, the version lets one through.
        await self._client.update("Lease", lease)
        return True

    def _is_silent(self, lease: _Item) -> bool:
        spec = lease["spec"]
        word = (spec.get("holderIdentity"), spec.get("renewTime"))
        now_s = self._clock()
        if word != self._seen[0]:
            self._seen = (word, now_s)
        return now_s >= self._seen[1] + self._lease_s


def _lease(namespace: str, name: str, spec: _Item) -> _Item:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
