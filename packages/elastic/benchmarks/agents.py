"""A thousand agents at one master: their streams are real, their workers are not."""

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import psutil

from drivetrain_elastic.decisions.membership import (
    MembershipConfig,
    MembershipState,
    Status,
    Worker,
    next_world,
)
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.protocol._service import METHODS, credentials
from drivetrain_testing import Row

_PER_CHANNEL = 50
_PROBE_S = 0.02
_MOST_ADDS = 3.0


def agents(quick):
    """Streams of heartbeats, one a second each, and calls in between."""
    num, seconds = (200, 5.0) if quick else (1000, 30.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    try:
        with tempfile.TemporaryDirectory() as folder:
            return measure(folder, num, seconds)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def measure(folder, num, seconds):
    command = [sys.executable, "-m", "drivetrain_elastic.cli", "master"]
    command += ["--journal", f"{folder}/job.db", "--token-file", f"{folder}/token"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as master:
        try:
            address = master.stdout.readline().split()[-1]
            token = Path(folder, "token").read_text()
            formed_s, waits = asyncio.run(attend(address, token, num, seconds))
            process = psutil.Process(master.pid)
            memory = process.memory_info().rss / 2**20
            cpu = process.cpu_times()
            share = (cpu.user + cpu.system) / (seconds + formed_s)
        finally:
            master.terminate()
    p99 = sorted(waits)[int(len(waits) * 0.99)]
    return Row(
        figure=f"{num} agents: world formed in {formed_s:.1f} s; a call takes "
        f"{statistics.median(waits) * 1e3:.1f} ms, p99 {p99 * 1e3:.0f} ms; the master has "
        f"{memory:.0f} MiB and {share:.0%} of a core",
        holds=formed_s <= 5.0 and p99 <= 0.1,
        proven_on="simulation",
    )


async def attend(address, token, num, seconds):
    """Returns how long the first world takes, and how long calls take after it."""
    metadata = credentials(token)
    channels = [
        grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        for _ in range(-(-num // _PER_CHANNEL))
    ]
    terms = pb.Terms(min_workers=num, max_workers=num, unit=1, patience_s=600)
    began_s = time.perf_counter()
    entered, end = asyncio.Event(), asyncio.Event()
    left = num

    async def one(at):
        nonlocal left
        method = METHODS["Attend"]
        call = channels[at // _PER_CHANNEL].stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )(metadata=metadata)
        worker = pb.WorkerReport(name=f"n{at}/0", state=pb.WorkerReport.READY)
        hello = pb.Hello(
            node=f"n{at}", host="h", pid=1, num_slots=1, workers=[worker], terms=terms
        )
        await call.write(pb.FromAgent(hello=hello))

        async def read():
            nonlocal left
            while (message := await call.read()) is not grpc.aio.EOF:
                if message.WhichOneof("what") == "world":
                    left -= 1
                    if left == 0:
                        entered.set()

        reader = asyncio.create_task(read())
        # Heartbeats begin at different times, as those of machines do.
        await asyncio.sleep(at / num)
        progress = pb.WorkerProgress(name=f"n{at}/0", pid=1, phase="computing")
        beat = pb.FromAgent(heartbeat=pb.Heartbeat(workers=[progress]))
        while not end.is_set():
            await call.write(beat)
            await asyncio.sleep(1.0)
        reader.cancel()
        call.cancel()

    tasks = [asyncio.create_task(one(at)) for at in range(num)]
    async with asyncio.timeout(120):
        await entered.wait()
    formed_s = time.perf_counter() - began_s
    method = METHODS["AddToKey"]
    async with grpc.aio.insecure_channel(address) as channel:
        add = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        waits, end_s = [], time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            before_s = time.perf_counter()
            await add(pb.Addition(key="probe", amount=1), metadata=metadata)
            waits.append(time.perf_counter() - before_s)
            await asyncio.sleep(_PROBE_S)
    end.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()
    return formed_s, waits


def decisions(quick):
    """Decides the next world of ten thousand workers after one has died."""
    num, times = 10_000, []
    config = MembershipConfig(min_workers=8, max_workers=num)
    state = MembershipState()
    began_s = time.perf_counter()
    for at in range(num):
        node = f"n{at // 8}"
        state.add(Worker(f"{node}/{at}", node, at % 8, Status.STANDBY))
    added_s = time.perf_counter() - began_s
    state.enter(next_world(100.0, state, config).world)
    for at in range(3 if quick else 20):
        state.remove([f"n{at}/{at * 8}"])
        began_s = time.perf_counter()
        verdict = next_world(100.0, state, config)
        times.append(time.perf_counter() - began_s)
        state.enter(verdict.world)
    found = statistics.median(times)
    return Row(
        figure=f"{found / added_s:.2f} x ({found * 1e3:.0f} ms for {num} workers)",
        holds=found <= _MOST_ADDS * added_s,
        proven_on="simulation",
    )
