"""Network namespaces: making them, working in them, and leaving nothing behind."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

_NETNS = Path("/run/netns")
_ETC = Path("/etc/netns")
_SHM = Path("/dev/shm")
# What every namespace has, whatever the machine's own settings are.
SYSCTLS = {
    "net.ipv4.tcp_rmem": "4096 131072 33554432",
    "net.ipv4.tcp_wmem": "4096 16384 4194304",
}
# What is recorded, not set: it belongs to the whole machine, or may be missing.
_RECORDED = (
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_congestion_control",
)
# Of the processes of a node, all share its host name and memory, and no other node's.
_ENTER = 'hostname "$1" && mount --bind "$2" /dev/shm && shift 2 && exec "$@"'


def run(*command, text=None):
    """Runs a command of the network tools, with an input if one is given.

    Raises:
        OSError: The command is not there, or it failed; the message says how.
    """
    done = subprocess.run(
        command, input=text, check=False, capture_output=True, text=True
    )
    if done.returncode:
        shown = " ".join(command)
        raise OSError(f"`{shown}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def at(name, words):
    """Runs `ip` in a namespace."""
    run("ip", "-n", name, *words.split())


def tc(name, commands):
    """Runs commands of `tc` in a namespace, all in one process."""
    text = "".join(f"{' '.join(map(_quoted, words))}\n" for words in commands)
    run("tc", "-n", name, "-batch", "-", text=text)


def namespace_file(name):
    """The file that stands for a namespace."""
    return _NETNS / name


@functools.cache
def missing_because():
    """Why there can be no shaped network namespaces here, or None."""
    name = f"dt-{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
    except OSError as error:
        return f"network namespaces cannot be made: {error}"
    try:
        at(name, "link add one type veth peer name other")
        tc(
            name,
            [
                [
                    "qdisc",
                    "add",
                    "dev",
                    "one",
                    "root",
                    "tbf",
                    "rate",
                    "1mbit",
                    "burst",
                    "64kb",
                    "limit",
                    "1mb",
                ]
            ],
        )
        with tempfile.TemporaryDirectory() as folder:
            run(*_command(name, "node", folder, ["true"]))
    except OSError as error:
        return f"links cannot be shaped: {error}"
    finally:
        run("ip", "netns", "del", name)
    return None


def make_namespace(name, hosts=None):
    """Makes a namespace that knows the names of some addresses.

    Nobody resolves names in it over the network, also not backwards, which torch does
    for every connection.

    Args:
        name: Its name.
        hosts: Names by address.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for address, host in (hosts or {}).items():
        lines += [f"{address} {host}", f"::ffff:{address} {host}"]
    folder = _ETC / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts").write_text("".join(f"{line}\n" for line in lines))
    (_SHM / name).mkdir(mode=0o1777, exist_ok=True)
    run("ip", "netns", "add", name)
    at(name, "link set lo up")
    settings = [f"{key}={value}" for key, value in SYSCTLS.items()]
    run("ip", "netns", "exec", name, "sysctl", "-q", "-w", *settings)


def settings_of(name):
    """The settings of TCP in a namespace, by name."""
    keys = [*SYSCTLS, *_RECORDED]
    found = run("ip", "netns", "exec", name, "sysctl", "-n", *keys).splitlines()
    return {
        key: " ".join(value.split()) for key, value in zip(keys, found, strict=True)
    }


def start(name, host, command, **options):
    """Starts a process in a namespace; returns its `Popen`."""
    there = _command(name, host, str(_SHM / name), command)
    return subprocess.Popen(there, **options)


def kill_processes(name):
    """Kills all processes of a namespace, daemons too, and those that they just made."""
    for _ in range(100):
        pids = [*map(int, run("ip", "netns", "pids", name).split())]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    raise OSError(f"processes of {name} outlive SIGKILL: {pids}")


def remove_namespace(name):
    """Removes a namespace, what runs in it, and its files; it need not be whole.

    Two rigs may find the same leftovers, so that it may also vanish meanwhile.
    """
    try:
        if namespace_file(name).exists():
            kill_processes(name)
            run("ip", "netns", "del", name)
    except OSError:
        if namespace_file(name).exists():
            raise
    for folder in (_ETC / name, _SHM / name):
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers():
    """Removes the namespaces of rigs whose process is dead; returns their names."""
    folders = [folder for folder in (_NETNS, _ETC) if folder.is_dir()]
    names = {file.name for folder in folders for file in folder.iterdir()}
    dead = []
    for name in sorted(names):
        found = re.fullmatch(r"dt-(\d+)-[\w-]+", name)
        if found and not Path("/proc", found[1]).exists():
            remove_namespace(name)
            dead.append(name)
    return dead


def _command(name, host, memory, command):
    enter = ["unshare", "--uts", "sh", "-c", _ENTER, "sh", host, memory]
    return ["ip", "netns", "exec", name, *enter, *map(str, command)]


def _quoted(word):
    return f'"{word}"' if " " in word else word
