"""Workers are forked by a server, which may be stopped or die."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from drivetrain_core import DistributedError
from drivetrain_core.processes import adopt_orphans
from drivetrain_elastic._agent import _launcher
from drivetrain_elastic._agent._adopted import reap_orphans
from drivetrain_elastic._agent._launcher import Launcher, Program

# What torch does where a module asks, as it is imported, whether there is a GPU.
ASKS = """
import os, torch
torch.accelerator.current_accelerator = lambda: torch.device("cuda")
def lose(): torch.cuda._is_in_bad_fork = lambda: True
os.register_at_fork(after_in_child=lose)
"""
WRITES = "import os, sys; open(sys.argv[1], 'w').write(os.environ['LONG'])"


@pytest.fixture
def light(monkeypatch):
    """Servers that load nothing, since what is loaded is not the matter here."""
    monkeypatch.setattr(_launcher, "_LOADED", ())
    adopt_orphans()


async def ended(pid):
    return (await asyncio.to_thread(os.waitpid, pid, 0))[1]


def launch(tmp_path, env, *, loaded=(), before=None):
    """Starts a server and one worker after another; returns how the last one ended."""
    script = Path(tmp_path, "script.py")
    script.write_text(WRITES)
    program = Program((str(script), str(tmp_path / "out")), False, str(tmp_path))

    async def run():
        launcher = Launcher(program, loaded=loaded, env=dict(os.environ))
        try:
            first = await launcher.start(env)
            await ended(first)
            if before is not None:
                before(launcher.pid)
            pid = await launcher.start(env)
            return await ended(pid)
        finally:
            await launcher.close()
            reap_orphans(())

    return asyncio.run(run())


def test_environment_may_be_longer_than_a_packet(light, tmp_path):
    parts = {f"PART{at}": "x" * 100_000 for at in range(6)}
    env = {**os.environ, **parts, "LONG": "y" * 100_000}
    assert launch(tmp_path, env) == 0
    assert (tmp_path / "out").read_text() == "y" * 100_000


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_server_that_does_not_answer_is_replaced(
    light, tmp_path, monkeypatch, number, caplog
):
    monkeypatch.setattr(_launcher, "_ANSWER_S", 1.0)
    stopped = []

    def hit(pid):
        os.kill(pid, number)
        # Somebody else waits for its end.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        stopped.append(pid)

    env = {**os.environ, "LONG": "here"}
    assert launch(tmp_path, env, before=hit) == 0
    assert len(stopped) == 1
    if number == signal.SIGSTOP:
        assert "the server that forks workers is replaced: TimeoutError" in caplog.text


def test_request_that_no_server_answers_fails(light, tmp_path, monkeypatch):
    monkeypatch.setattr(_launcher, "_ANSWER_S", 0.0)
    with pytest.raises(DistributedError, match="did not answer within 0 s"):
        launch(tmp_path, {**os.environ, "LONG": "here"})


@pytest.mark.slow
def test_module_after_which_forks_cannot_use_a_gpu_is_refused(
    light, tmp_path, monkeypatch, capfd
):
    (tmp_path / "asks.py").write_text(ASKS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DistributedError, match="did not start"):
        launch(tmp_path, {**os.environ, "LONG": "here"}, loaded=("asks",))
    told = capfd.readouterr().err
    assert "asks cannot be imported before workers are forked" in told
    assert not (tmp_path / "out").exists()
