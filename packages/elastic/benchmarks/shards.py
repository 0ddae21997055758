"""How many shards a master deals out: every lease in the journal before it is told."""

import os
import subprocess
import sys
import tempfile
import time

from drivetrain_elastic import Master
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.protocol import messages as pb
from drivetrain_testing import Row

_CLIENT = """
import sys
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.protocol import messages as pb
address, token, worker, num_shards, seconds = sys.argv[1:]
import time
with MasterClient(address, token) as client:
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.perf_counter() + float(seconds)
    num_leases = num_requests = 0
    held = []
    while time.perf_counter() < end:
        request = pb.LeaseRequest(dataset="d", worker=worker, num_shards=int(num_shards),
            timeout_s=1.0, held=held)
        reply = client.call("LeaseShards", request)
        commits = [pb.Commit(fence=s.fence, upto=s.end) for s in reply.shards]
        held = [s.fence for s in reply.shards]
        client.call("CommitShards",
            pb.CommitRequest(dataset="d", worker=worker, commits=commits))
        held = []
        num_leases += len(commits)
        num_requests += 2
    print(num_leases, num_requests, flush=True)
"""


def rates(num_shards, num_clients, seconds):
    """Returns leases and requests a second; each lease is committed as well."""
    with tempfile.TemporaryDirectory() as folder, Master(f"{folder}/job.db") as master:
        with MasterClient(master.address, master.token) as client:
            dataset = pb.Dataset(
                name="d", num_samples=1 << 40, shard_size=1 << 10, shuffle="samples"
            )
            client.call("OpenDataset", dataset)
        where = [master.address, master.token]
        clients = [
            subprocess.Popen(
                [
                    *(sys.executable, "-c", _CLIENT, *where),
                    *(f"w{at}", str(num_shards), str(seconds)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for at in range(num_clients)
        ]
        try:
            for one in clients:
                one.stdout.readline()
            started = time.perf_counter()
            for one in clients:
                one.stdin.write("go\n")
                one.stdin.flush()
            counts = [map(int, one.stdout.readline().split()) for one in clients]
            leases, requests = map(sum, zip(*counts, strict=True))
            passed = time.perf_counter() - started
        finally:
            for one in clients:
                one.kill()
                one.communicate()
    return leases / passed, requests / passed


def batches(quick):
    """Leases in batches, each of them committed, all of it in the journal."""
    seconds = 3 if quick else 10
    found, _ = rates(64, 3, seconds)
    single, _ = rates(1, 3, seconds)
    return Row(
        figure=f"{found / single:.1f} x ({found:,.0f} leases/s, each committed too, 3 "
        f"clients; {single:,.0f} one at a time)",
        holds=found >= 10 * single,
    )


def singles(quick):
    """Requests for one shard, each waiting for the disk."""
    _, found = rates(1, 8, 3 if quick else 10)
    alone = syncs()
    return Row(
        figure=f"{found / alone:.2f} x ({found:,.0f} requests/s of 8 clients; "
        f"{alone:,.0f} records that one process syncs alone)",
        holds=found >= alone,
    )


def syncs(num=500):
    """Returns how many small records a second a process appends that syncs each."""
    with tempfile.TemporaryFile() as file:
        started = time.perf_counter()
        for _ in range(num):
            os.write(file.fileno(), bytes(128))
            os.fdatasync(file.fileno())
        return num / (time.perf_counter() - started)


if __name__ == "__main__":
    print(batches(False).figure)
    print(singles(False).figure)
