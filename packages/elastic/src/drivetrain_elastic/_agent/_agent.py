"""The agent of a node: between its workers and the job's master."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import re
import secrets
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_core.processes import adopt_orphans, children
from drivetrain_elastic._agent._adopted import kill_adopted, reap_orphans
from drivetrain_elastic._agent._diagnostician import Diagnostician, first_line
from drivetrain_elastic._agent._final_reports import FinalReports
from drivetrain_elastic._agent._flights import flights_of
from drivetrain_elastic._agent._launcher import Launcher, Program
from drivetrain_elastic._agent._master_process import MasterProcess
from drivetrain_elastic._agent._master_stream import MasterStream
from drivetrain_elastic._agent._node_check import NodeCheck
from drivetrain_elastic._agent._node_watch import NodeWatch
from drivetrain_elastic._agent._notice_listener import NoticeListener
from drivetrain_elastic._agent._output import Output
from drivetrain_elastic._agent._process import WARNINGS
from drivetrain_elastic._agent._worker_connection import serve_workers
from drivetrain_elastic._agent._worker_group import WorkerGroup
from drivetrain_elastic._client._address import split_addresses, stays_here
from drivetrain_elastic._client._folder import make_folder
from drivetrain_elastic._client._token import check_token, make_token, write_token
from drivetrain_elastic._observability._stacks import take_stacks
from drivetrain_elastic.decisions.ending import Ending
from drivetrain_elastic.decisions.leaving import judge_leaving
from drivetrain_elastic.decisions.past_ending import judge_past_ending
from drivetrain_elastic.protocol import messages as pb
from drivetrain_health.failures import Health

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from drivetrain_elastic._agent._config import AgentConfig

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
_NAP_S = 0.5
_STUCK_PAUSE_S = 1.0
_DUMP_S = 0.3
_CHECK_JOIN_S = 30.0
_LATE_GRACE_S = 2.0
# How long after a worker the agent gets a signal that was sent to all processes.
_ECHO_S = 2.0
_ORPHANS_S = 5.0
_SOCKET = "agent"
# With which a terminal or a scheduler ends a process.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


# They tell a process of a launcher, or of a group that others share with it.
_OF_A_LAUNCHER = re.compile(
    "((GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*)"
)


class _Outcome(NamedTuple):
    """How the agent's work has ended.

    Attributes:
        exit_code: Of the agent.
        reason: Why, for people.
        grace_s: How long the workers that are left have to end.
    """

    exit_code: int
    reason: str
    grace_s: float


class Agent:
    """Runs a script's workers on this node, and replaces those that die.

    Args:
        program: The script and its arguments; with `is_module`, a module and its.
        config: How many workers, and how they are run.
        address: Of the job's master, `host:port`; of several candidates, with commas.
            None starts a master for this node alone.
        token: Of the job; needed with an address.
        tls: Credentials of the channel to the master.
        is_module: Whether the program is a module.
        master: A master that this agent keeps running, in place of an address.

    Attributes:
        reason: Why `run` has returned, for people.

    Raises:
        ProgramError: An address without a token, or without a port.

    Example:
        >>> from drivetrain_elastic import AgentConfig
        >>> agent = Agent(["train.py", "--lr", "0.1"], AgentConfig(num_workers=4))
        >>> agent.run()  # doctest: +SKIP
        0
    """

    def __init__(
        self,
        program: Sequence[str],
        config: AgentConfig,
        *,
        address: str | None = None,
        token: str | None = None,
        tls: grpc.ChannelCredentials | None = None,
        is_module: bool = False,
        master: MasterProcess | None = None,
    ) -> None:
        if token is None and (address is not None or master is not None):
            message = "an agent that is given a master needs the token of the job"
            raise ProgramError(message)
        if token is not None:
            check_token(token, "--token-file or DRIVETRAIN_ELASTIC_TOKEN")
        if address is not None:
            split_addresses(address)
        self._program = Program(tuple(program), is_module, str(Path.cwd()))
        self._config = config
        self._address = address
        self._token = token
        self._tls = tls
        self._master = master
        self.reason = ""
        self._id = secrets.token_hex(8)
        self._num_signals = 0
        self._echo_end_s = 0.0
        self._reported_stuck: set[str] = set()
        # What every master is told, since the one before may not have written it.
        self._final_reports = FinalReports()
        self._broken: pb.Broken | None = None
        self._leave_reason = ""
        self._leave_end_s = math.inf
        self._leave_code = 0
        self._leaving: asyncio.Task[None] | None = None
        self._diagnostician: Diagnostician | None = None
        self._watch: NodeWatch | None = None
        self._last_check: pb.CheckResult | None = None
        self._last_saved: pb.Saved | None = None
        # Of checkpoints since the node was told to leave; empty for those that are durable.
        self._failures: list[str] = []
        # Whether the first copy of the model, which saves, was here when there last was one.
        self._saves_here = False
        self._signal_code = 0
        self._notices = NoticeListener(config, self._report_notice)

    def run(self) -> int:
        """Runs the job's part on this node and returns the exit code for it.

        In the main thread, SIGTERM, SIGINT, SIGHUP and SIGQUIT make the node leave: its
        workers end after the step in flight, and if the job goes on nowhere else, after a
        checkpoint. So does SIGTERM to a worker. A second signal to this process kills
        them. The code is 0 if others go on; if not, it is 128 and the number of the
        signal, or 1 where something that was trained may be lost. `WARNINGS` are passed
        on to workers that handle them; without any, a checkpoint is saved. An agent that
        keeps the master stays until the job has ended, or a signal comes after its workers
        have left.

        Whatever workers have started is killed at the end. Children of this process that
        are older, or in its session, are not touched; others are taken for theirs.

        Raises:
            DrivetrainError: The master refuses this agent, or none answers within the
                patience, or workers cannot be started.
        """
        return asyncio.run(self._run())

    async def _run(self) -> int:
        adopt_orphans()
        self._outcome: asyncio.Future[_Outcome]
        self._outcome = asyncio.get_running_loop().create_future()
        strangers = children()
        folder = make_folder(_SOCKET)
        output = Output(self._config.log_folder, tee=self._config.tee)
        tasks: list[asyncio.Task[None]] = []
        try:
            if self._address is None and self._master is None:
                self._master = self._own_master(folder)
            if self._master is not None:
                self._address = await self._master.start()
                logger.info(
                    "the master of this job: --address %s --token-file %s",
                    *(self._address, self._master.token_file),
                )
                tasks.append(asyncio.create_task(self._master.run()))
            assert self._address is not None
            assert self._token is not None
            self._path = f"{folder}/{_SOCKET}"
            env = self._environment(self._path)
            self._launcher = launcher = Launcher(
                self._program, loaded=self._config.preload, env=env
            )
            self._diagnostician = Diagnostician(self._config.node, folder, output)
            self._watch = NodeWatch(
                self._diagnostician, alert=self._report_alert, is_training=self._sends
            )
            self._worker_group = WorkerGroup(
                self._config,
                launcher,
                output,
                env,
                report=self._report,
                broken=self._report_broken,
                saved=self._report_saved,
                terminated=self._hear_of_sigterm,
                diagnostician=self._diagnostician,
            )
            self._stream = MasterStream(
                self._address,
                self._token,
                hello=self._hello,
                heartbeat=self._heartbeat,
                heard=self._heard,
                patience_s=self._config.patience_s,
                tls=self._tls,
            )
            server = await serve_workers(self._path, heard=self._worker_group.heard)
            self._listen_to_signals()
            self._diagnostician.start()
            self._check = NodeCheck(self._config.node, env)
            stream = asyncio.create_task(self._stream.run())
            tasks += [stream, asyncio.create_task(self._train())]
            tasks.append(asyncio.create_task(self._watch.run()))
            ending: list[asyncio.Future[Any]] = [*tasks, self._outcome]
            tasks.append(asyncio.create_task(self._notices.run()))
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            await self._go_home(stream)
            await self._notices.acknowledge()
            server.close()
            await launcher.close()
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception():
                    task.result()
            outcome = self._outcome.result()
            short = first_line(outcome.reason)
            logger.info("this node has ended with %d: %s", outcome.exit_code, short)
            self.reason = outcome.reason
            return outcome.exit_code
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._diagnostician is not None:
                self._diagnostician.close()
            if self._master is not None:
                await self._master.close()
            await self._kill_orphans(strangers)
            await output.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _own_master(self, folder: str) -> MasterProcess:
        """Returns a master for this node alone, whose journal ends with the job."""
        self._token = make_token()
        write_token(f"{folder}/token", self._token)
        journal = ["--journal", f"{folder}/job.db"]
        return MasterProcess("127.0.0.1:0", f"{folder}/token", journal)

    def _environment(self, path: str) -> dict[str, str]:
        # Such a launcher around this agent knows nothing of these workers.
        env = {
            name: value
            for name, value in os.environ.items()
            if not _OF_A_LAUNCHER.fullmatch(name)
        }
        assert self._address is not None
        assert self._token is not None
        env["DRIVETRAIN_ELASTIC_AGENT"] = path
        env["DRIVETRAIN_ELASTIC_MASTER"] = self._address
        env["DRIVETRAIN_ELASTIC_TOKEN"] = self._token
        # As torchrun has them; all agents of the job find the same number.
        run_id = hashlib.pbkdf2_hmac("sha256", self._token.encode(), b"run", 100_000)
        env["TORCHELASTIC_RUN_ID"] = run_id.hex()[:16]
        env["TORCHELASTIC_MAX_RESTARTS"] = str(self._config.max_restarts)
        if self._config.num_workers > 1:
            # As torchrun does: otherwise each worker would use all processors.
            env.setdefault("OMP_NUM_THREADS", "1")
        return env

    async def _go_home(self, stream: asyncio.Task[None]) -> None:
        """Ends the workers, and takes leave of the master."""
        grace_s, reason = 0.0, "the agent has failed"
        if self._outcome.done():
            outcome = self._outcome.result()
            grace_s, reason = outcome.grace_s, outcome.reason
        await self._worker_group.stop(reason, grace_s=grace_s)
        if self._stream.is_open and not stream.done():
            self._stream.send(pb.FromAgent(goodbye=pb.Goodbye(reason=reason)))
            self._stream.close()
            await asyncio.wait([stream], timeout=2.0)

    # ---- the master ----

    def _hello(self) -> pb.Hello:
        config = self._config
        terms = pb.Terms(
            min_workers=config.fewest_workers,
            max_workers=config.max_nodes * config.num_workers,
            unit=config.workers_per_copy,
            last_call_s=config.last_call_s,
            patience_s=config.patience_s,
            stuck_s=config.stuck_s,
        )
        return pb.Hello(
            node=config.node,
            host=os.uname().nodename,
            pid=os.getpid(),
            num_slots=config.num_workers,
            workers=[*self._worker_group.reports(), *self._final_reports.all()],
            terms=terms,
            agent=self._id,
            broken=self._broken,
            leave=self._leave_request(),
            machine=config.machine or config.node,
            alerts=self._watch.alerts() if self._watch is not None else (),
            check=self._last_check,
            notice=self._notices.message(),
            saved=self._last_saved,
        )

    def _heartbeat(self) -> pb.Heartbeat:
        workers = self._worker_group.workers.values()
        return pb.Heartbeat(
            workers=[one.progress() for one in workers],
            hardware=self._watch.hardware() if self._watch is not None else None,
        )

    def _sends(self) -> bool:
        """Whether traffic is to be expected at the ports: not if all is on this machine."""
        phases = {one.phase for one in self._worker_group.workers.values()}
        assert self._address is not None
        return bool(phases & {"computing", "waiting"}) and not stays_here(self._address)

    def _report_alert(self, alert: pb.Alert) -> None:
        logger.log(
            logging.INFO if alert.is_over else logging.WARNING,
            "%s%s: %s",
            *("no longer " if alert.is_over else "", alert.kind),
            first_line(alert.reason),
        )
        self._stream.send(pb.FromAgent(alert=alert))

    def _report(self, reports: list[pb.WorkerReport]) -> None:
        self._final_reports.add(reports)
        self._stream.send(pb.FromAgent(workers=pb.WorkerReports(reports=reports)))

    def _report_broken(self, epoch: int, worker: str, reason: str) -> None:
        broken = pb.Broken(epoch=epoch, worker=worker, reason=reason)
        if self._broken is None or epoch > self._broken.epoch:
            self._broken = broken
        self._stream.send(pb.FromAgent(broken=broken))

    def _report_notice(self, notice: pb.CapacityNotice) -> None:
        self._stream.send(pb.FromAgent(notice=notice))

    def _report_saved(self, saved: pb.Saved) -> None:
        self._last_saved = saved
        self._failures.append(saved.failure)
        self._stream.send(pb.FromAgent(saved=saved))

    def _heard(self, message: pb.ToAgent) -> None:
        what = message.WhichOneof("what")
        if what == "world":
            world = message.world
            is_here = any(one.node == self._config.node for one in world.members)
            where = "" if is_here else ", without this node"
            logger.info("world %d%s: %s", world.epoch, where, first_line(world.reason))
            if world.members:
                self._saves_here = world.members[0].node == self._config.node
            self._final_reports.settle(message.world)
            self._worker_group.show_world(message.world)
        elif what == "command":
            self._obey(message.command)
        elif what == "save":
            self._worker_group.show_save_request(message.save)
        elif what == "notice":
            notice = message.notice
            short = first_line(notice.reason)
            logger.warning("%s %s: %s", notice.kind, notice.subject, short)

    def _obey(self, command: pb.Command) -> None:
        if command.what == pb.Command.STOP_ALL:
            ending = Ending(command.exit_code, command.reason)
            if command.ended_at_s and self._stream.num_streams == 1:
                at_s, on_ended = command.ended_at_s, self._config.on_ended
                ending = judge_past_ending(ending, at_s, on_ended=on_ended)
            self._end(_Outcome(*ending, self._config.grace_s))
        elif command.what == pb.Command.LEAVE:
            self._leave_code = command.exit_code
            self._leave(command.reason, command.within_s)
        elif command.what == pb.Command.CHECK:
            if self._config.check in {"suspicion", "always"}:
                check = self._check_on_suspicion(command.reason)
                self._checking = asyncio.create_task(check)
        elif command.what == pb.Command.DUMP_STACKS:
            flights = flights_of(self._worker_group.workers.values(), self._path)
            self._stream.send(pb.FromAgent(flights=flights))
            self._worker_group.dump_stacks()
            self._showing = asyncio.create_task(self._show_stacks(command.reason))

    async def _show_stacks(self, reason: str) -> None:
        await asyncio.sleep(_DUMP_S)
        for worker in self._worker_group.workers.values():
            if worker.process is not None and not worker.is_spare:
                text = take_stacks(self._path, worker.process.pid)
                logger.warning("%s; the stacks of %s:\n%s", reason, worker.name, text)

    def _end(self, outcome: _Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    # ---- leaving ----

    def _leave(self, reason: str, within_s: float) -> None:
        """Lets the workers go at the end of a step, and then the agent."""
        self._leave_end_s = min(self._leave_end_s, time.monotonic() + within_s)
        if self._leaving is not None:
            return
        logger.info("this node leaves within %.1f s: %s", within_s, first_line(reason))
        self._leave_reason = reason
        self._worker_group.ask_to_leave(reason, within_s)
        self._leaving = asyncio.create_task(self._wait_for_leaving())

    async def _wait_for_leaving(self) -> None:
        group = self._worker_group
        has_trained = any(worker.step for worker in group.workers.values())
        self._failures.clear()
        while group.workers and time.monotonic() < self._leave_end_s:
            await asyncio.sleep(0.01)
        # Those that could not leave in time are asked once more, and not for long.
        reason = f"the node has left: {self._leave_reason}"
        code = self._leave_code
        if not (goes_on := self._goes_on_elsewhere()):
            why = judge_leaving(
                self._failures,
                num_left=len(group.workers),
                has_failed=group.has_failed,
                owes_save=self._saves_here and has_trained,
            )
            reason += why and f"; {why}"
            code = code or (1 if why else self._signal_code)
        if self._master is None or not goes_on:
            self._end(_Outcome(code, reason, _LATE_GRACE_S))
            return
        await group.stop(reason, grace_s=_LATE_GRACE_S)
        logger.warning(
            "the workers of this node have left; the agent stays to the end of the job, "
            "which needs the master that it keeps (a signal ends both)"
        )

    def _leave_request(self) -> pb.LeaveRequest | None:
        """Returns what a master has to know of a node that leaves."""
        if self._leaving is None:
            return None
        return pb.LeaveRequest(
            node=self._config.node,
            within_s=max(0.0, self._leave_end_s - time.monotonic()),
            reason=self._leave_reason,
            exit_code=self._leave_code,
        )

    def _listen_to_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (*_ENDING, *WARNINGS):
            heard = self._warn if number in WARNINGS else self._signal
            # `nohup` has SIGHUP ignored, and means it.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, heard, number)

    def _warn(self, number: signal.Signals) -> None:
        """Passes a warning on to workers that listen for it; else saves, as for a notice."""
        reason = f"the agent got {number.name}"
        if self._worker_group.pass_on(number):
            logger.info("%s: it is passed on to the workers that handle it", reason)
            return
        logger.warning("%s, which no worker handles: it is a notice to save", reason)
        grace_s, is_only_told = self._config.grace_s, self._config.on_notice == "tell"
        self._report_notice(
            pb.CapacityNotice(
                within_s=grace_s, reason=reason, is_only_told=is_only_told
            )
        )

    def _signal(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if now_s < self._echo_end_s:
            # All processes of the node got it, and this one heard of it from a worker.
            self._echo_end_s = 0.0
            return
        self._num_signals += 1
        grace_s, reason = self._config.grace_s, f"the agent got {number.name}"
        has_left = self._leaving is not None and self._leaving.done()
        workers = list(self._worker_group.workers.values())
        if self._num_signals > 1 or has_left:
            self._end(_Outcome(1 if workers else 128 + number, reason, 0.0))
            for worker in workers:
                self._worker_group.kill(worker, reason)
            return
        self._signal_code = 128 + number
        # The time runs from now, whether or not there is a master that hears of it; what
        # workers leave behind takes some of it.
        self._leave(reason, grace_s - min(_LATE_GRACE_S, grace_s / 4))
        self._stream.send(pb.FromAgent(leave=self._leave_request()))

    def _hear_of_sigterm(self) -> None:
        """Takes note that a worker got SIGTERM, which was not this agent's."""
        if self._num_signals or self._leaving is not None or self._outcome.done():
            return
        self._signal(signal.SIGTERM)
        self._echo_end_s = time.monotonic() + _ECHO_S

    def _goes_on_elsewhere(self) -> bool:
        world = self._worker_group.world
        nodes = {one.node for one in world.members} if world is not None else set()
        return len(nodes - {self._config.node}) > 0

    # ---- the workers ----

    def _reap_orphans(self) -> None:
        master = self._master.pid if self._master is not None else 0
        ours = {self._launcher.pid, master, self._check.pid}
        reap_orphans({*self._worker_group.pids, *ours})

    async def _kill_orphans(self, strangers: set[int]) -> None:
        """Kills what workers have started and left, also in sessions of their own."""
        end_s = time.monotonic() + _ORPHANS_S
        while kill_adopted(strangers) and time.monotonic() < end_s:
            await asyncio.sleep(0.002)

    async def _train(self) -> None:
        """Checks the node, if that is wanted, and starts and looks after its workers."""
        checks = self._config.check in {"start", "always"}
        while (checks or self._config.max_nodes > 1) and not self._stream.is_open:
            await asyncio.sleep(_LOOK_S)
        if checks:
            result = await self._check_first()
            self._report_check(result)
            if result.is_faulty:
                logger.error("this node does not train: %s", result.reason)
                await self._outcome
        self._worker_group.begin(self._stream.place)
        await self._look_after_workers()

    async def _check_first(self) -> pb.CheckResult:
        config = self._config
        if config.max_nodes == 1:
            return await self._check.alone()
        assert self._address is not None
        join_s = config.last_call_s + _CHECK_JOIN_S
        return await self._check.together(
            config.max_nodes, self._address, join_s=join_s
        )

    async def _check_on_suspicion(self, reason: str) -> None:
        logger.info("this node is checked: %s", first_line(reason))
        self._report_check(await self._check.alone())

    def _report_check(self, result: pb.CheckResult) -> None:
        if self._outcome.done():
            # The job has ended under the check, which has found nothing then.
            return
        logger.info("the check of this node: %s", result.reason)
        self._last_check = result
        self._stream.send(pb.FromAgent(check=result))

    async def _look_after_workers(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(_LOOK_S)
            overslept_s = time.monotonic() - began_s - _LOOK_S
            self._reap_orphans()
            stuck = self._worker_group.check(
                overslept_s if overslept_s > _NAP_S else 0.0
            )
            for worker, why in stuck:
                if worker.name in self._reported_stuck:
                    continue
                self._reported_stuck.add(worker.name)
                logger.error("worker %s is stuck: %s", worker.name, why)
                reason = f"{worker.name} is stuck, {why}"
                self._stream.send(pb.FromAgent(stuck=pb.Stuck(reason=reason)))
                # Every rank first writes down what it is doing.
                await asyncio.sleep(_STUCK_PAUSE_S)
                if self._config.on_stuck == "kill":
                    self._worker_group.kill(worker, why, Health.STUCK)
