"""Jobs train whatever the machine around them lacks: streams, names, homes, and more."""

import os
import socket
import subprocess
import sys

import pytest

from drivetrain_elastic._client._address import free_port
from drivetrain_health.faults import missing_because, skew_clock

pytestmark = pytest.mark.slow

SCRIPT = """
import torch
from pathlib import Path
from drivetrain_elastic import ElasticLoop, Schedule
data, model = torch.rand(40, 4), torch.nn.Linear(4, 1)
loop = ElasticLoop(
    model,
    torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=Schedule(num_samples=40, global_batch=4),
    num_steps=3,
)
print("begun", flush=True)
for step in loop:
    with step:
        for part in step.parts():
            (model(data[part.indices]).square().mean() * part.weight).backward()
if loop.is_done:
    Path(f"done-{loop.rank}").touch()
"""


def namespace(*kinds, setup):
    """Returns words before a command that run it in namespaces of its own.

    Skips the test where the system does not make them.
    """
    words = ["unshare", *kinds, "sh", "-euc", f'{setup}\nexec "$@"', "sh"]
    try:
        tried = subprocess.run(
            [*words, "true"], check=False, capture_output=True, text=True, timeout=60
        )
    except OSError as error:
        pytest.skip(f"no namespaces: {error}")
    if tried.returncode:
        pytest.skip(f"no namespaces here: {tried.stderr.strip()[-200:]}")
    return words


def train(folder, *options, before=(), env=None, num_workers=2, **streams):
    """Runs a job in a folder; returns its exit status, and checks that all of it was done."""
    (folder / "train.py").write_text(SCRIPT)
    log = folder / "log"
    command = [*before, sys.executable, "-m", "drivetrain_elastic.cli", "run"]
    command += ["--nproc-per-node", str(num_workers), "--standbys", "0"]
    command += ["--patience-s", "60", *options, "train.py"]
    with log.open("wb") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output} | streams
        done = subprocess.run(
            command,
            check=False,
            cwd=folder,
            stderr=streams.pop("stderr", output),
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
            timeout=180,
            **streams,
        )
    text = log.read_text(errors="replace")
    assert done.returncode == 0, text
    for rank in range(num_workers):
        assert (folder / f"done-{rank}").exists(), text
    return text


def test_proxies_do_not_stand_between_processes_of_a_job(tmp_path):
    # It would see the token as well.
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0)
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
        env = dict.fromkeys((*names, *map(str.upper, names)), url)
        train(tmp_path, env=env | {"no_proxy": "", "NO_PROXY": ""})
        with pytest.raises(BlockingIOError):
            proxy.accept()


def rendezvous(folder, host):
    port = free_port()
    where = ["--rdzv-endpoint", f"{host}:{port}", "--token-file", str(folder / "token")]
    return [*where, "--journal", str(folder / "job.db")]


def test_master_listens_at_an_address_of_version_six(tmp_path):
    before = namespace(
        "--net", setup="ip link set lo up; ip -6 addr show lo | grep ::1"
    )
    train(tmp_path, *rendezvous(tmp_path, "[::1]"), before=before)


def test_name_that_has_only_an_address_of_version_six(tmp_path):
    (tmp_path / "hosts").write_text("::1 localhost\n127.0.0.1 this\n")
    setup = f"ip link set lo up; mount --bind {tmp_path}/hosts /etc/hosts"
    before = namespace("--net", "--mount", setup=setup)
    train(tmp_path, *rendezvous(tmp_path, "localhost"), before=before)


def test_host_name_that_does_not_resolve(tmp_path):
    setup = "ip link set lo up; hostname nowhere.to.be.found"
    text = train(tmp_path, before=namespace("--net", "--uts", setup=setup))
    assert "nowhere.to.be.found" in text


@pytest.mark.parametrize(
    "closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"], ids=str
)
@pytest.mark.parametrize("options", [[], ["--log-dir", "logs", "--tee"]], ids=str)
def test_standard_streams_that_are_closed(tmp_path, closed, options):
    before = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    train(tmp_path, *options, before=before, num_workers=1)
    logs = list(tmp_path.glob("logs/*/*/stdout.log"))
    assert [one.read_text() for one in logs] == (["begun\n"] if options else [])


def test_home_that_is_read_only(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    setup = f"mount -t tmpfs -o ro none {home}"
    before = namespace("--mount", setup=setup)
    train(tmp_path, before=before, env={"HOME": str(home), "XDG_CACHE_HOME": ""})


def test_container_without_shared_memory(tmp_path):
    before = namespace("--mount", setup="mount -t tmpfs -o ro none /dev/shm")
    train(tmp_path, before=before)


@pytest.mark.parametrize(("seconds", "drift"), [(-1e9, -0.999), (1e9, 1e4)])
def test_wall_clock_that_jumps(tmp_path, seconds, drift):
    why = missing_because("clock")
    if why is not None:
        pytest.skip(f"no clock faults: {why}")
    train(tmp_path, env=skew_clock(seconds, drift=drift))


def test_workers_write_nothing_that_scripts_do_not(tmp_path):
    text = train(tmp_path)
    (tmp_path / "log").unlink()
    assert text.count("begun") == 2
    assert "leaked" not in text
    assert "nanobind" not in text
