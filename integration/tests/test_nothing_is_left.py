"""A run of tests that leaves something behind has failed, and says what."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
SHARED_MEMORY = Path(f"/dev/shm/drivetrain-left-{os.getpid()}")
SLEEPS = [sys.executable, "-c", "import time; time.sleep(20)"]
LEAVE = {
    "thread": """
        import threading, time
        threading.Thread(
            target=time.sleep, args=(60,), name="drivetrain-some", daemon=True
        ).start()
    """,
    "thread without a name": """
        from drivetrain_checkpoint._peers.peer_server import PeerServer
        test_it.server = PeerServer("127.0.0.1", 0, print)
    """,
    "child": f"""
        import subprocess
        subprocess.Popen({SLEEPS})
    """,
    "process": f"""
        import subprocess, sys
        code = "import subprocess; subprocess.Popen({SLEEPS}, start_new_session=True)"
        subprocess.run([sys.executable, "-c", code], check=True)
    """,
    "shared memory": f"""
        from pathlib import Path
        Path("{SHARED_MEMORY}").write_text("")
    """,
    "nothing": """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    """,
    "nothing but what serves it": """
        import subprocess, sys
        # Ends when this process does.
        code = "import sys; sys.stdin.read()"
        subprocess.Popen([sys.executable, "-c", code, "fork_server"], stdin=-1)
    """,
}
SAID = {
    "thread": "have left {<Thread(drivetrain-some",
    "thread without a name": "(_serve)",
    "child": "time.sleep(20)",
    "process": "started in test_some.py::test_it (call)",
    "shared memory": f"left behind: {SHARED_MEMORY}, a file, of this run or",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LEAVE)
def test_what_is_left_behind_fails_the_run_and_is_named(tmp_path, what):
    text = CONFTEST.read_text("utf-8").replace("GRACE_S = 15.0", "GRACE_S = 0.5")
    (tmp_path / "conftest.py").write_text(text)
    test = textwrap.dedent(LEAVE[what])
    (tmp_path / "test_some.py").write_text(
        "def test_it():\n" + textwrap.indent(test, "    ")
    )
    env = {key: value for key, value in os.environ.items() if "TEST" not in key}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
            check=False,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
        )
    finally:
        SHARED_MEMORY.unlink(missing_ok=True)
    assert done.returncode == (what in SAID), done.stdout
    assert SAID.get(what, "1 passed") in done.stdout
