"""Makes failures happen, and records what is seen of them, as samples for the tests.

    python packages/elastic/tests/data/failures/record.py [NAME]...

It needs Linux, root (for a group with little memory and small file systems) and a C
compiler. What cannot be made to happen without the hardware is in documented.json.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
from pathlib import Path

from drivetrain_health.diagnosis import KernelLog

HERE = Path(__file__).parent
GROUP = Path("/sys/fs/cgroup/memory/drivetrain-record")
WORLD = """
    import os, sys, time, datetime as dt
    import torch, torch.distributed as dist
    rank = int(sys.argv[1])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2], RANK=str(rank),
                      WORLD_SIZE="2")
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=SECONDS))
"""
LOADER = """
    import os, signal, torch
    from torch.utils.data import DataLoader
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 64
        def __getitem__(self, index):
            BODY
            return torch.zeros(SIZE)
    if __name__ == "__main__":
        for batch in DataLoader(Data(), batch_size=8, num_workers=1):
            pass
"""

# name: (class, cause, is a node to blame, program)
PROGRAMS = {
    "wrong-shapes": ("program", "shapes-do-not-match", False, """
        import torch
        def step(model, batch):
            return model(batch).sum()
        step(torch.nn.Linear(8, 4), torch.rand(2, 9)).backward()
        """),
    "missing-file": ("program", "file-not-found-error", False,
        "open('/data/train/shard-00017.bin', 'rb')"),
    "import-error": ("program", "module-not-found-error", False,
        "import torch\nimport flash_attention_of_ours"),
    "missing-key": ("program", "key-error", False,
        "config = {'lr': 1e-3}\nprint('lr', config['lr'])\nconfig['warmup']"),
    "assertion": ("program", "assertion-error", False,
        "batch = 3\nassert batch % 2 == 0, f'batch {batch} is odd'"),
    "no-gradient": ("program", "wrong-gradient", False,
        "import torch\ntorch.ones(2).sum().backward()"),
    "syntax": ("program", "syntax-error", False, "def step(:\n    pass"),
    "usage": ("program", "usage", False, """
        import argparse
        parser = argparse.ArgumentParser(prog="train.py")
        parser.add_argument("--lr", type=float, required=True)
        parser.parse_args(["--learning-rate", "1"])
        """),
    "wrapped": ("program", "training-error", False, """
        class TrainingError(Exception): pass
        def load(): raise ValueError("12 columns, 13 expected")
        try:
            load()
        except ValueError as error:
            raise TrainingError("row 7 cannot be used") from error
        """),
    "damaged-checkpoint": ("storage", "checkpoint-damaged", False, """
        import torch
        torch.save({"w": torch.zeros(100_000)}, "model.pt")
        open("model.pt", "r+b").truncate(300_000)
        torch.load("model.pt")
        """),
    "no-memory-for-tensor": ("out-of-memory", "out-of-memory-host", True, """
        import resource, torch
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        torch.zeros(40 << 30, dtype=torch.uint8)
        """),
    "no-memory-for-list": ("out-of-memory", "out-of-memory-host", True, """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
        [bytes(50 << 20) for _ in range(100)]
        """),
    "no-memory-for-array": ("out-of-memory", "out-of-memory-host", True, """
        import resource, numpy
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        numpy.ones((1 << 20, 1 << 10))
        """),
    "no-memory-in-c": ("out-of-memory", "out-of-memory-host", True, """
        #include <vector>
        int main() { std::vector<char> big(1L << 46); return big[5]; }
        """),
    "segfault": ("crash", "segfault", True,
        "import ctypes\ndef step():\n    ctypes.string_at(16)\nstep()"),
    "segfault-with-stacks": ("crash", "segfault", True, """
        import faulthandler, ctypes, torch
        faulthandler.enable()
        def step():
            ctypes.string_at(16)
        step()
        """),
    "abort": ("crash", "abort", True, "import os\nos.abort()"),
    "abort-with-stacks": ("crash", "abort", True,
        "import faulthandler, os\nfaulthandler.enable()\ndef save():\n    os.abort()\nsave()"),
    "double-free": ("crash", "heap-corruption", True, """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        at = libc.malloc(5000)
        libc.free(at)
        libc.free(at)
        """),
    "illegal-instruction": ("crash", "illegal-instruction", True, """
        import ctypes, mmap
        page = mmap.mmap(-1, 4096, prot=7)
        page.write(bytes([0x0F, 0x0B]))
        at = ctypes.addressof(ctypes.c_char.from_buffer(page))
        ctypes.CFUNCTYPE(None)(at)()
        """),
    "bus-error": ("crash", "bus-error", True, """
        import mmap
        with open("data.bin", "w+b") as file:
            file.truncate(8192)
            page = mmap.mmap(file.fileno(), 8192)
            file.truncate(0)
            page[4096]
        """),
    "assertion-in-c": ("crash", "abort", True, """
        #include <cassert>
        void reduce(int world) { assert(world % 2 == 0); }
        int main(int argc, char** argv) { reduce(argc); }
        """),
    "exception-in-c": ("crash", "abort", True, """
        #include <stdexcept>
        int main() { throw std::runtime_error("bucket 7 has no view"); }
        """),
    "division-in-c": ("crash", "arithmetic-fault", True,
        "int main(int argc, char** argv) { return 7 / (argc - 1); }"),
    "exit-3": ("unknown", "exit-3", True, "import sys\nprint('bye')\nsys.exit(3)"),
    "killed": ("killed", "sigkill", True,
        "import os\nprint('step 12', flush=True)\nos.kill(os.getpid(), 9)"),
    "terminated": ("killed", "sigterm", True,
        "import os\nprint('step 12', flush=True)\nos.kill(os.getpid(), 15)"),
    "interrupted": ("killed", "interrupted", True, """
        import os, signal
        def step():
            signal.raise_signal(signal.SIGINT)
        step()
        """),
    "loader-killed": ("killed", "dataloader-worker-killed", True,
        LOADER.replace("BODY", "os.kill(os.getpid(), 9)").replace("SIZE", "4")),
    "loader-segfault": ("crash", "segfault", True,
        LOADER.replace("BODY", "os.kill(os.getpid(), 11)").replace("SIZE", "4")),
    "loader-exits": ("killed", "dataloader-worker", True,
        LOADER.replace("BODY", "os._exit(1)").replace("SIZE", "4")),
    "loader-raises": ("program", "value-error", False,
        LOADER.replace("BODY", "raise ValueError(f'sample {index} is empty')")
        .replace("SIZE", "4")),
}  # fmt: skip

WORLDS = {
    "peer-killed": ("interconnect", "connection-reset", False, 60, """
        while True:
            dist.all_reduce(torch.ones(1_000_000))
            if rank == 1: os.kill(os.getpid(), 9)
        """, 0),
    "peer-silent": ("interconnect", "gloo-timeout", False, 4, """
        dist.all_reduce(torch.ones(4))
        if rank == 1: time.sleep(12)
        dist.all_reduce(torch.ones(4))
        """, 0),
    "barrier-alone": ("interconnect", "gloo-timeout", False, 60, """
        if rank == 1: time.sleep(8)
        dist.monitored_barrier(timeout=dt.timedelta(seconds=3))
        """, 0),
    "reduction-unfinished": ("program", "collective-mismatch", False, 30, """
        from torch.nn.parallel import DistributedDataParallel
        two = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
        class Model(torch.nn.Module):
            def __init__(self): super().__init__(); self.two = two
            def forward(self, x): return self.two["a"](x).sum()
        model = DistributedDataParallel(Model())
        for _ in range(2): model(torch.rand(2, 2)).backward()
        """, 0),
}  # fmt: skip


def main():
    wanted = set(sys.argv[1:])
    file = HERE / "recorded.json"
    samples = json.loads(file.read_text()) if file.exists() else {}
    for name, sample in every():
        if wanted and name not in wanted:
            continue
        samples[name] = sample()
        print(
            name, samples[name]["exit_code"], samples[name]["output"][-2:], flush=True
        )
    file.write_text(json.dumps(dict(sorted(samples.items())), indent=1) + "\n")


def every():
    """Yields the names of samples, and what records each."""
    for name, (*expected, program) in PROGRAMS.items():
        yield name, lambda e=expected, p=program: alone(e, p)
    for name, (*expected, seconds, body, shown) in WORLDS.items():
        yield name, lambda e=expected, s=seconds, b=body, r=shown: world(e, s, b, r)
    yield "port-in-use", port_in_use
    yield "nobody-came", nobody_came
    yield "no-master", no_master
    yield "no-such-host", no_such_host
    yield "memory-group", memory_group
    yield (
        "disk-full",
        lambda: on_disk("disk-full", "size=1m", "open('a','wb').write(bytes(3<<20))"),
    )
    yield (
        "disk-full-save",
        lambda: on_disk(
            "io-error",
            "size=1m",
            "import torch\ntorch.save(torch.zeros(1 << 20), 'model.pt')",
        ),
    )
    yield "disk-read-only", lambda: on_disk("read-only", "ro", "open('a', 'w')")
    yield "loader-shared-memory", loader_shared_memory
    yield "torchrun", torchrun


def alone(expected, program):
    with tempfile.TemporaryDirectory() as folder:
        return run(expected, [*prepared(folder, program)], folder)


def prepared(folder, program):
    """Writes a program to a folder, compiled if it is one in C++; returns its command."""
    text = textwrap.dedent(program).lstrip()
    if "int main(" in text:
        Path(folder, "train.cpp").write_text(text)
        command = ["g++", "-O0", "-o", "train", "train.cpp"]
        subprocess.run(command, cwd=folder, check=True, stderr=subprocess.DEVNULL)
        return ["./train"]
    Path(folder, "train.py").write_text(text)
    return [sys.executable, "-P", "train.py"]


def run(expected, command, folder, **options):
    """Runs a command to its end; returns the sample of it."""
    with KernelLog() as log, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, **options
        )
        code = process.wait(60)
        time.sleep(0.2)
        output.seek(0)
        text = output.read().decode(errors="replace")
        of_it = re.compile(rf"\b{process.pid}\b|oom|Memory cgroup")
        kernel = [one.text for one in log.read() if of_it.search(one.text)]
    return sample(expected, code, text, kernel, folder)


def sample(expected, code, text, kernel, folder):
    failure_class, cause, blames_node = expected
    lines = [cleaned(line, folder) for line in text.splitlines()]
    if len(lines) > 120:
        lines = [*lines[:20], "...", *lines[-100:]]
    return {
        "class": failure_class,
        "cause": cause,
        "blames_node": blames_node,
        "exit_code": code,
        "output": lines,
        "kernel": [cleaned(line, folder) for line in kernel],
    }


def cleaned(line, folder):
    """Takes names of this machine out of a line."""
    for path, name in (
        (folder, "/job"),
        (sysconfig.get_path("purelib"), "/venv/lib/python3.11/site-packages"),
        (sys.prefix, "/venv"),
        (sysconfig.get_path("stdlib"), "/usr/lib/python3.11"),
        (os.uname().release, "6.1.0"),
        (GROUP.name, "job-1"),
    ):
        line = line.replace(path, name)
    return re.sub(
        rf"(?<![\w-]){re.escape(socket.gethostname())}(?![\w-])", "node-1", line
    )


def world(expected, seconds, body, shown):
    """Runs two ranks; returns the sample of one of them."""
    program = textwrap.dedent(WORLD.replace("SECONDS", str(seconds)))
    with tempfile.TemporaryDirectory() as folder:
        command = prepared(folder, program + textwrap.dedent(body))
        port = str(free_port())
        other = subprocess.Popen(
            [*command, str(1 - shown), port],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return run(expected, [*command, str(shown), port], folder)
        finally:
            other.kill()
            other.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def meeting(expected, seconds, rank, host="127.0.0.1", port=None):
    program = WORLD.replace("SECONDS", str(seconds)).replace("127.0.0.1", host)
    with tempfile.TemporaryDirectory() as folder:
        command = prepared(folder, program)
        return run(expected, [*command, str(rank), str(port or free_port())], folder)


def port_in_use():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        return meeting(("rendezvous", "port-in-use", True), 5, 0, port=port)


def nobody_came():
    return meeting(("rendezvous", "store-timeout", False), 3, 0)


def no_master():
    return meeting(("rendezvous", "store-timeout", False), 3, 1)


def no_such_host():
    expected = ("rendezvous", "name-resolution", False)
    return meeting(expected, 3, 1, host="node-17.invalid")


def memory_group():
    """A process in a control group that needs more memory than the group may have."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.limit_in_bytes").write_text(str(200 << 20))
    text = "data = []\nwhile True:\n    data.append(bytearray(8 << 20))\n"
    with tempfile.TemporaryDirectory() as folder:

        def enter():
            (GROUP / "cgroup.procs").write_text(str(os.getpid()))

        expected = ("out-of-memory", "out-of-memory-host", True)
        try:
            return run(expected, prepared(folder, text), folder, preexec_fn=enter)
        finally:
            GROUP.rmdir()


def on_disk(cause, option, program):
    """A program in a small file system of its own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
        try:
            command = prepared(folder, program)
            again = ["mount", "-o", f"remount,{option}", folder]
            subprocess.run(again, check=True)
            return run(("storage", cause, True), command, folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def loader_shared_memory():
    program = LOADER.replace("BODY", "").replace("SIZE", "1 << 20")
    with tempfile.TemporaryDirectory() as folder:
        command = " ".join(prepared(folder, program))
        script = f"mount -t tmpfs -o size=1m none /dev/shm && exec {command}"
        expected = ("out-of-memory", "shared-memory", True)
        return run(expected, ["unshare", "-m", "sh", "-c", script], folder)


def torchrun():
    """What torchrun writes when one of two ranks fails, and the other is ended."""
    text = """
        import os, time
        if os.environ["RANK"] == "1":
            raise ValueError("learning rate -1 is below 0")
        time.sleep(60)
        """
    with tempfile.TemporaryDirectory() as folder:
        prepared(folder, text)
        command = [sys.executable, "-P", "-m", "torch.distributed.run"]
        command += ["--standalone", "--nproc-per-node=2", "train.py"]
        return run(("program", "value-error", False), command, folder)


if __name__ == "__main__":
    assert signal.SIGKILL == 9
    sys.exit(main())
