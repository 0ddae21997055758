"""Nodes that will be taken away, and the checkpoint that is saved before."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_elastic.decisions.reclaims import Reclaim, judge_reclaims
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drivetrain_elastic._master._node import Node
    from drivetrain_elastic.decisions.reclaims import ReclaimVerdict

_SAVE_S, _STEP_S = 5.0, 1.0


class Reclaims:
    """Keeps notices and the last checkpoint that was asked for; used from one event loop.

    None of it is written: agents repeat their notices to each master, and a checkpoint
    that was asked for is asked for again.

    Args:
        note: Writes down what has happened: the kind, the subject and the reason.
        tell: Tells all agents.
    """

    def __init__(
        self, note: Callable[[str, str, str], None], tell: Callable[[Any], None]
    ) -> None:
        self._note = note
        self._tell = tell
        self._notices: dict[str, pb.CapacityNotice] = {}
        self._reclaims: dict[str, Reclaim] = {}
        self._leaves: dict[str, Reclaim] = {}
        self._request = pb.SaveRequest()
        self._asked_s = self._own_asked_s = float("-inf")
        self._end_s = 0.0
        self._saved: pb.Saved | None = None
        self._save_s = _SAVE_S

    # ---- notices ----

    def take_notice(self, node: str, notice: pb.CapacityNotice | None) -> None:
        """Notes that a node will be taken away, or will not.

        Args:
            node: Which one.
            notice: What its agent says; None if it knows of nothing.
        """
        known = self._reclaims.get(node)
        if notice is None or notice.is_withdrawn:
            if known is not None:
                why = "it is not taken away" if notice is None else notice.reason
                self._note("notice-withdrawn", node, why)
                self.forget(node)
            return
        now_s = time.monotonic()
        deadline_s = now_s + notice.within_s
        if known is None:
            why = f"{notice.reason}, within {notice.within_s:.0f} s"
            self._note("notice", node, why)
        heard_s = now_s if known is None else known.heard_s
        self._reclaims[node] = Reclaim(heard_s, deadline_s)
        self._notices[node] = notice

    def forget(self, node: str) -> None:
        """Forgets what was said of a node, which is gone or stays."""
        self._reclaims.pop(node, None)
        self._notices.pop(node, None)
        self._leaves.pop(node, None)

    def take_leave(self, node: str, within_s: float) -> None:
        """Notes that a node leaves, for whatever reason."""
        now_s = time.monotonic()
        heard_s = self._leaves[node].heard_s if node in self._leaves else now_s
        self._leaves[node] = Reclaim(heard_s, now_s + within_s)

    def notice_of(self, node: str) -> pb.CapacityNotice | None:
        """Returns what is said of a node, with the seconds that are left."""
        if node not in self._notices:
            return None
        left_s = self._reclaims[node].deadline_s - time.monotonic()
        notice = pb.CapacityNotice()
        notice.CopyFrom(self._notices[node])
        notice.within_s = max(0.0, left_s)
        return notice

    def judge(
        self, now_s: float, nodes: Iterable[Node], *, is_short: bool = False
    ) -> ReclaimVerdict:
        """Asks for a checkpoint if one is due; returns what else is to be done.

        Args:
            now_s: The time.
            nodes: Those that train.
            is_short: Whether too few are left without those that leave.
        """
        step_s = 0.0
        training: set[str] = set()
        leaving: set[str] = set()
        for node in nodes:
            (training if node.leave is None else leaving).add(node.name)
            steps_s = [one.step_s for one in node.progress.values()]
            step_s = max([step_s, *steps_s])
        ours = {
            node: reclaim
            for node, reclaim in self._reclaims.items()
            if node in training and not self._notices[node].is_only_told
        }
        num_others = len(training - self._reclaims.keys())
        if leaving and (is_short or not training):
            # Nobody makes a step after them.
            ours = {node: self._leaves[node] for node in leaving & self._leaves.keys()}
            num_others = 0
        verdict = judge_reclaims(
            now_s,
            ours,
            num_others=num_others,
            asked_s=self._own_asked_s,
            step_s=step_s or _STEP_S,
            save_s=self._save_s,
        )
        if verdict.save_by_s is not None:
            self._own_asked_s = now_s
            within_s = verdict.save_by_s - now_s
            reason = f"{', '.join(sorted(ours))} will be gone in {within_s:.0f} s"
            self.ask_to_save(
                pb.SaveRequest(
                    request=secrets.token_hex(8), within_s=within_s, reason=reason
                )
            )
        return verdict

    # ---- checkpoints ----

    def ask_to_save(self, order: pb.SaveRequest) -> None:
        """Asks for a checkpoint; one that is asked for again counts once.

        Raises:
            ProgramError: The request has no name.
        """
        if not order.request:
            message = "a request to save needs a name that no other request has"
            raise ProgramError(message)
        if order.request == self._request.request:
            return
        self._request, self._saved = order, None
        self._asked_s = time.monotonic()
        self._end_s = self._asked_s + order.within_s
        self._note("save", order.request, order.reason)
        self._tell(self.save_message())

    def take_saved(self, saved: pb.Saved) -> None:
        """Notes what has become of a checkpoint that was asked for."""
        if saved.request != self._request.request or self._saved is not None:
            return
        self._saved = saved
        took_s = time.monotonic() - self._asked_s
        if saved.failure:
            self._note("save-failed", saved.request, saved.failure)
        else:
            self._save_s = took_s
            what = (
                f"step {saved.step} is durable, {took_s:.2f} s after it was asked for"
            )
            self._note("saved", saved.request, what)
        self._tell(pb.ToAgent(save=pb.SaveRequest()))

    def save_message(self) -> pb.ToAgent | None:
        """Returns what agents are told of the checkpoint that is wanted; None for none."""
        left_s = self._end_s - time.monotonic()
        if not self._request.request or self._saved is not None or left_s <= 0:
            return None
        order = pb.SaveRequest()
        order.CopyFrom(self._request)
        order.within_s = left_s
        return pb.ToAgent(save=order)

    def describe(self, status: pb.Status) -> None:
        """Fills in what is known of notices and of the last checkpoint."""
        for node in status.nodes:
            notice = self.notice_of(node.node)
            if notice is not None:
                node.notice.CopyFrom(notice)
        if self._request.request:
            status.save.request = self._request.request
            if self._saved is not None:
                status.save.saved.CopyFrom(self._saved)
