"""A rank that reduces without end, and says what it saw when that ended.

It prints a line when it has begun, and one of JSON in the end.
"""

import datetime as dt
import json
import os
import sys
import time

import torch
import torch.distributed as dist

from drivetrain_comm import enable


def main():
    timeout_s, num_floats, algorithm = (
        float(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
    )
    enable(algorithm=algorithm)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=timeout_s))
    vector = torch.ones(num_floats)
    dist.all_reduce(vector)
    print("begun", flush=True)
    start, error = time.monotonic(), None
    try:
        while True:
            start = time.monotonic()
            dist.all_reduce(vector)
    except RuntimeError as raised:
        error = str(raised)
    seconds = time.monotonic() - start
    print(json.dumps({"error": error, "seconds": seconds}), flush=True)
    # Its peers are not to see this process end before they have seen the death.
    time.sleep(timeout_s)
    os._exit(0)


if __name__ == "__main__":
    main()
