"""Worker group: the workers of a node, started, watched, replaced and stopped."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core import DistributedError
from drivetrain_core.processes import describe_exit
from drivetrain_elastic._agent._diagnostician import clean_text, first_line
from drivetrain_elastic._agent._process import ChildProcess
from drivetrain_elastic._agent._require_elastic import NOT_ELASTIC
from drivetrain_elastic._agent._worker import LocalWorker, Stage
from drivetrain_elastic._client._address import free_port
from drivetrain_elastic._observability._stacks import DUMP_SIGNAL
from drivetrain_elastic.decisions.liveness import judge_liveness
from drivetrain_elastic.decisions.respawn import judge_respawn
from drivetrain_elastic.protocol import messages as pb
from drivetrain_health.diagnosis import count_oom_kills
from drivetrain_health.failures import FailureClass, Health

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drivetrain_elastic._agent._config import AgentConfig
    from drivetrain_elastic._agent._diagnostician import Diagnostician
    from drivetrain_elastic._agent._launcher import Launcher
    from drivetrain_elastic._agent._output import Output
    from drivetrain_elastic._agent._worker_connection import WorkerConnection

logger = logging.getLogger(__name__)

_WINDOW_S = 3600.0
_QUICK_S = 5.0
_AFTER_S = 1.0
_BEAT_S = 0.5
_UNKNOWN, _EARLY = FailureClass.UNKNOWN.value, "ended-early"


class WorkerGroup:
    """The workers of a node; used from one event loop.

    Args:
        config: How they are run.
        launcher: Starts them.
        output: Where they write.
        env: What they see of the environment, besides what tells them who they are.
        report: Takes what has happened at the same time, for the master.
        broken: Takes the epoch of a world whose collectives fail, on whom, and why.
        saved: Takes what has become of a checkpoint that was asked for.
        terminated: Called when a worker got SIGTERM from somebody else.
        diagnostician: Finds out why workers fail.

    Attributes:
        world: The last one that was heard of; None before the first.
        workers: Those that live, by name.
        pids: Processes that have not ended yet, of these and of others.
        has_failed: Whether a worker has failed after all were asked to leave.
    """

    def __init__(
        self,
        config: AgentConfig,
        launcher: Launcher,
        output: Output,
        env: Mapping[str, str],
        *,
        report: Callable[[list[pb.WorkerReport]], None],
        broken: Callable[[int, str, str], None],
        saved: Callable[[pb.Saved], None],
        terminated: Callable[[], None],
        diagnostician: Diagnostician,
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._output = output
        self._env = dict(env)
        self._report = report
        self._broken = broken
        self._saved = saved
        self._terminated = terminated
        self._save_request = pb.SaveRequest()
        self._save_end_s = 0.0
        self._diagnostician = diagnostician
        self._examinations: set[asyncio.Task[None]] = set()
        self._tag = secrets.token_hex(2)
        self._serials = itertools.count()
        self._copies = itertools.count()
        self._deaths_s: dict[int, list[float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._was_ready = False
        self._is_ending = False
        self._first_rank = 0
        # What starts as soon as a worker has shown that the program makes its steps here.
        self._waiting: list[tuple[int, bool]] = []
        # Places must be kept where each is a device of its own.
        self._has_devices = Path("/dev/nvidiactl").exists()
        self.world: pb.World | None = None
        self.workers: dict[str, LocalWorker] = {}
        self.pids: set[int] = set()
        self.has_failed = False

    # ---- starting ----

    def begin(self, place: int = 0) -> None:
        """Starts a first copy, and all others as soon as it calls.

        A program that is no elastic one, or has a mistake at its start, would otherwise
        run in all places at once before that shows.

        Args:
            place: Of this node among those of the job, for the ranks that workers expect.
        """
        self._first_rank = place * self._config.num_workers
        unit, num_workers = self._config.workers_per_copy, self._config.num_workers
        copies = [(slot, False) for slot in range(0, num_workers, unit)]
        copies += [
            (at * unit % num_workers, True) for at in range(self._config.num_standbys)
        ]
        (slot, is_spare), *self._waiting = copies
        self._start_copy(slot, is_spare=is_spare)

    def _start_copy(self, slot: int, *, is_spare: bool, wait_s: float = 0.0) -> None:
        """Starts the workers of a copy of the model, from a place on."""
        task = asyncio.create_task(self._start_soon(slot, is_spare, wait_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_soon(self, slot: int, is_spare: bool, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        unit, copy = self._config.workers_per_copy, next(self._copies)
        port = free_port() if unit > 1 else 0
        for at in range(unit):
            if self._is_ending:
                return
            name = f"{self._config.node}/{self._tag}-{next(self._serials)}"
            worker = LocalWorker(
                name=name,
                slot=slot + at,
                copy=copy,
                is_spare=is_spare,
                began_s=time.monotonic(),
                heard_s=time.monotonic(),
                phase_began_s=time.monotonic(),
                num_oom_kills=count_oom_kills() or 0,
            )
            self.workers[name] = worker
            env = self._env | {
                "DRIVETRAIN_ELASTIC_WORKER": name,
                "DRIVETRAIN_ELASTIC_BEAT_S": f"{min(_BEAT_S, self._config.frozen_s / 4)}",
                "DRIVETRAIN_ELASTIC_ERROR_FILE": self._diagnostician.error_path(name),
                "LOCAL_RANK": str(slot + at),
                "LOCAL_WORLD_SIZE": str(self._config.num_workers),
                # As it starts, at full strength: nobody knows yet which world comes.
                "RANK": str(self._first_rank + slot + at),
                "WORLD_SIZE": str(self._config.max_nodes * self._config.num_workers),
                "TORCHELASTIC_RESTART_COUNT": str(len(self._deaths_s.get(slot, ()))),
            }
            if unit > 1:
                env |= {"RANK": str(at), "WORLD_SIZE": str(unit)}
                env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            try:
                with self._output.open(name) as descriptors:
                    pid = await self._launcher.start(env, descriptors)
                worker.process = ChildProcess(pid, partial(self._end, worker))
                self.pids.add(pid)
            except (OSError, DistributedError) as error:
                self._bury(worker, f"could not be started: {error}", is_own_fault=True)
                return
            logger.info("worker %s is process %d", name, pid)
            if worker.why_killed:
                # As it started; so were the others of its copy.
                worker.process.signal(signal.SIGKILL)
                return
            if not is_spare:
                self._report([worker.report()])

    # ---- what workers say ----

    def heard(self, connection: WorkerConnection, message: dict[str, Any]) -> None:
        """Takes a worker's message."""
        what = message["what"]
        if what == "hello":
            worker = self.workers.get(message["name"])
            if worker is None:
                connection.close()
                return
            worker.connection, worker.heard_s = connection, time.monotonic()
            waiting, self._waiting = self._waiting, []
            for slot, is_spare in waiting if not self._is_ending else ():
                self._start_copy(slot, is_spare=is_spare)
            if self.world is not None and not worker.is_spare:
                self._show(worker)
            if self._save_request.request:
                self._show_save_request(worker)
            return
        found = [one for one in self.workers.values() if one.connection is connection]
        if not found:
            return
        (worker,) = found
        worker.heard_s = time.monotonic()
        if what == "beat":
            worker.take_beat(message)
        elif what == "broken":
            self._broken(message["epoch"], worker.name, message["reason"])
        elif what == "terminated":
            self._terminated()
        elif what == "saved":
            del message["what"]
            self._saved(pb.Saved(**message))
        elif what == "ready":
            worker.stage = Stage.READY
            self._was_ready = True
            if not worker.is_spare:
                self._report([worker.report()])
        elif what in {"finished", "left"}:
            worker.stage = Stage(what)

    # ---- what the master says ----

    def show_world(self, world: pb.World) -> None:
        """Tells the workers of a world."""
        self.world = world
        for worker in self.workers.values():
            if not worker.is_spare:
                self._show(worker)

    def _show(self, worker: LocalWorker) -> None:
        world = self.world
        assert world is not None
        if worker.connection is None:
            return
        members = [one.name for one in world.members]
        worker.connection.send(
            "world",
            epoch=world.epoch,
            rank=members.index(worker.name) if worker.name in members else -1,
            members=members,
            nodes=[one.node for one in world.members],
            broken_epoch=world.broken_epoch,
            unit=self._config.workers_per_copy,
        )

    def show_save_request(self, request: pb.SaveRequest) -> None:
        """Tells the workers which checkpoint is wanted; one without a name is none."""
        self._save_request = request
        self._save_end_s = time.monotonic() + request.within_s
        for worker in self.workers.values():
            self._show_save_request(worker)

    def _show_save_request(self, worker: LocalWorker) -> None:
        if worker.connection is not None:
            worker.connection.send(
                "save",
                request=self._save_request.request,
                within_s=self._save_end_s - time.monotonic(),
                reason=self._save_request.reason,
            )

    def ask_to_leave(self, reason: str, within_s: float) -> None:
        """Lets all workers leave at the end of a step; those that stand by go at once."""
        self._is_ending = True
        for worker in list(self.workers.values()):
            if worker.is_spare or worker.stage == Stage.STARTING:
                self.kill(worker, "the node leaves")
            elif worker.connection is not None:
                worker.connection.send("leave", reason=reason, within_s=within_s)

    def pass_on(self, number: int) -> bool:
        """Sends a signal to those that handle it and have a place; returns whether any is."""
        found = [
            w.process for w in self.workers.values() if w.process and not w.is_spare
        ]
        return sum(process.pass_on(number) for process in found) > 0

    def dump_stacks(self) -> None:
        """Lets all workers that have a place write down what they are doing."""
        for worker in self.workers.values():
            if worker.is_spare or worker.connection is None:
                continue
            # One that is at its end may not answer any more: the signal would kill it.
            is_ending = worker.stage in {Stage.FINISHED, Stage.LEFT}
            if worker.process is not None and not is_ending:
                worker.process.signal_alone(DUMP_SIGNAL)

    # ---- dying ----

    def check(self, overslept_s: float) -> list[tuple[LocalWorker, str]]:
        """Kills workers that are frozen; returns those that are stuck, and why.

        Args:
            overslept_s: For how long this agent itself has not listened.
        """
        stuck = []
        for worker in list(self.workers.values()):
            worker.heard_s += overslept_s
            if worker.process is None or worker.why_killed:
                continue
            health, why = judge_liveness(
                worker.signs(),
                frozen_s=self._config.frozen_s,
                stuck_s=self._config.stuck_s,
            )
            if health == Health.FROZEN:
                self.kill(worker, why, health)
            elif health == Health.STUCK:
                stuck.append((worker, why))
        return stuck

    def kill(self, worker: LocalWorker, why: str, health: Health = Health.WELL) -> None:
        """Kills a worker; one that has no process yet, as soon as it has one."""
        worker.why_killed, worker.health = why, health
        if worker.process is not None:
            worker.process.signal(signal.SIGKILL)

    def _end(self, worker: LocalWorker, exit_code: int) -> None:
        """Notes that a process has ended, and sees to its place."""
        assert worker.process is not None
        self.pids.discard(worker.process.pid)
        if self.workers.get(worker.name) is not worker:
            return
        why = describe_exit(exit_code)
        if worker.why_killed:
            why = f"was killed: {first_line(worker.why_killed)}"
        elif worker.stage == Stage.FINISHED:
            self._part(worker, pb.WorkerReport.FINISHED, why, exit_code)
            return
        elif worker.stage == Stage.LEFT and exit_code == 0:
            self._part(worker, pb.WorkerReport.LEFT, why, exit_code)
            return
        elif exit_code == 0:
            why = f"ended {NOT_ELASTIC}"
            if worker.stage == Stage.READY:
                why = (
                    "ended with exit code 0 before the end of the training: by sys.exit, "
                    "os._exit, or a way out of its loop that is no error"
                )
        self._bury(worker, why, is_own_fault=exit_code >= 0, exit_code=exit_code)

    def _part(
        self,
        worker: LocalWorker,
        state: pb.WorkerReport.State,
        why: str,
        exit_code: int,
    ) -> None:
        """Lets go of a worker that nobody is to replace."""
        del self.workers[worker.name]
        if not worker.is_spare:
            self._report([_final(worker, state, why, exit_code)])
        if worker.connection is not None:
            worker.connection.close()
        self._diagnostician.forget(worker)

    def _bury(
        self, worker: LocalWorker, why: str, *, is_own_fault: bool, exit_code: int = 1
    ) -> None:
        """Lets go of a worker that has died, and of its copy, and sees to the place."""
        self.has_failed |= self._is_ending and not worker.why_killed
        if self._is_ending and worker.why_killed:
            ended = first_line(worker.why_killed)
            logger.info("worker %s is not needed any more: %s", worker.name, ended)
        else:
            logger.warning("worker %s %s", worker.name, why)
        copy = [one for one in self.workers.values() if one.copy == worker.copy]
        for one in copy:
            del self.workers[one.name]
            if one is not worker:
                self.kill(one, f"{worker.name}, which shares its copy, {why}")
                short = first_line(one.why_killed)
                logger.warning("worker %s is killed: %s", one.name, short)
            if one.connection is not None:
                one.connection.close()
        reports = [
            _final(
                one,
                pb.WorkerReport.FAILED,
                why if one is worker else one.why_killed,
                exit_code,
            )
            for one in copy
            if not one.is_spare
        ]
        if self._is_ending:
            if reports:
                self._report(reports)
            for one in copy:
                self._diagnostician.forget(one)
            return
        never_ready = worker.stage == Stage.STARTING and not self._was_ready
        hopeless = is_own_fault and never_ready
        reports += self._refill(worker, reports, hopeless)
        is_given_up = any(one.given_up for one in reports)
        if reports and not is_given_up:
            self._report(reports)
        # Others wait for the next world, but not for the reason; unless there is no next one.
        task = asyncio.create_task(
            self._examine(copy, worker, exit_code, why, reports if is_given_up else [])
        )
        self._examinations.add(task)
        task.add_done_callback(self._examinations.discard)

    async def _examine(
        self,
        copy: list[LocalWorker],
        worker: LocalWorker,
        exit_code: int,
        why: str,
        reports: list[pb.WorkerReport],
    ) -> None:
        """Reports why a copy has failed, with what else waits for that."""
        who, siblings = worker, [one for one in copy if one is not worker]
        try:
            if exit_code == 0 and not worker.why_killed:
                # Nothing has failed: its program has ended too early.
                logger.warning("worker %s: %s: it %s", worker.name, _EARLY, why)
                failure = pb.Failure(failure_class=_UNKNOWN, cause=_EARLY, evidence=why)
            else:
                who, failure = await self._diagnostician.examine(
                    worker, exit_code, siblings
                )
        except Exception as error:
            # Whatever cannot be read, or is not understood: the master must hear of the end.
            logger.exception("why worker %s has failed is not known", worker.name)
            failure = pb.Failure(
                failure_class=_UNKNOWN,
                cause="not-examined",
                evidence=clean_text(f"the examination failed: {error!r}"),
            )
        finally:
            for one in copy:
                self._diagnostician.forget(one)
        if worker.is_spare:
            # It had no place: the job makes its steps without it.
            return
        found = [one for one in reports if one.name == who.name]
        if not found:
            reason = why if who is worker else who.why_killed
            found = [_final(who, pb.WorkerReport.FAILED, reason, exit_code)]
            reports = [*found, *reports]
        found[0].failure.CopyFrom(failure)
        self._report(reports)

    def _refill(
        self, worker: LocalWorker, reports: list[pb.WorkerReport], hopeless: bool
    ) -> list[pb.WorkerReport]:
        """Gives a dead copy's place to one that stands by, or to a new one."""
        unit = self._config.workers_per_copy
        slot = worker.slot // unit * unit
        deaths_s = self._deaths_s.setdefault(slot, [])
        deaths_s.append(time.monotonic())
        verdict = judge_respawn(
            deaths_s,
            max_restarts=self._config.max_restarts,
            window_s=_WINDOW_S,
            quick_s=_QUICK_S,
            is_hopeless=hopeless,
        )
        logger.info("place %d of %s: %s", slot, self._config.node, verdict.reason)
        if verdict.wait_s is None:
            for report in reports:
                report.given_up = True
                report.reason += f" ({verdict.reason})"
            return []
        if worker.is_spare:
            self._start_copy(slot, is_spare=True, wait_s=max(verdict.wait_s, _AFTER_S))
            return []
        spare = self._best_spare(slot)
        if not spare:
            self._start_copy(slot, is_spare=False, wait_s=verdict.wait_s)
            return []
        for at, one in enumerate(sorted(spare, key=lambda w: w.slot)):
            one.is_spare, one.slot = False, slot + at
        # What it computes as it starts would be missing while the others recover.
        self._start_copy(slot, is_spare=True, wait_s=max(verdict.wait_s, _AFTER_S))
        return [one.report() for one in spare]

    def _best_spare(self, slot: int) -> list[LocalWorker]:
        """Returns the copy that stands by and is furthest, if any fits a place."""
        copies: dict[int, list[LocalWorker]] = {}
        for worker in self.workers.values():
            if worker.is_spare:
                copies.setdefault(worker.copy, []).append(worker)
        unit = self._config.workers_per_copy
        whole = [
            copy
            for copy in copies.values()
            if len(copy) == unit
            and (not self._has_devices or min(one.slot for one in copy) == slot)
        ]
        ready = [c for c in whole if all(one.stage == Stage.READY for one in c)]
        return (ready or whole or [[]])[0]

    async def stop(self, why: str, *, grace_s: float) -> None:
        """Ends all workers: SIGTERM, and SIGKILL to those that are not gone in time."""
        self._is_ending = True
        for task in list(self._tasks):
            task.cancel()
        for worker in self.workers.values():
            worker.why_killed = worker.why_killed or why
            if worker.process is None:
                continue
            if worker.connection is not None:
                # One that holds SIGTERM off knows by this that it is meant.
                worker.connection.send("stop")
            number = signal.SIGTERM if grace_s > 0 else signal.SIGKILL
            if worker.is_spare:
                number = signal.SIGKILL
            worker.process.signal(number)
        end_s = time.monotonic() + grace_s
        # Some were let go of when their copy died, and may still be dying.
        while self.pids and time.monotonic() < end_s:
            await asyncio.sleep(0.01)
        for worker in self.workers.values():
            if worker.process is not None:
                worker.process.signal(signal.SIGKILL)
        while self.pids:
            await asyncio.sleep(0.005)

    def reports(self) -> Iterable[pb.WorkerReport]:
        """Returns what a master is to know of all workers but those that stand by."""
        return [w.report() for w in self.workers.values() if not w.is_spare]


def _final(
    worker: LocalWorker, state: pb.WorkerReport.State, why: str, exit_code: int
) -> pb.WorkerReport:
    return pb.WorkerReport(
        name=worker.name,
        slot=worker.slot,
        state=state,
        reason=clean_text(why),
        exit_code=exit_code,
        progress=worker.progress(),
    )
