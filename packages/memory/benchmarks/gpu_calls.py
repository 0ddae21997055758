"""What each call of the CUDA driver costs, idle and while kernels run."""

import ctypes
import json
import statistics
import sys
import time

import torch

CHUNK = 2 * 2**20


class Prop(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int))


def timed(found, name, call):
    begin = time.perf_counter()
    code = call()
    found.setdefault(name, []).append(1e6 * (time.perf_counter() - begin))
    if code:
        raise RuntimeError(f"{name} returned {code}")


def measured(cuda, rounds, handles, work):
    """Medians in microseconds of each call, for ranges of so many handles."""
    found = {}
    prop = Prop(type=1, location_type=1, location_id=0)
    access = Access(type=1, id=0, flags=3)
    size, chunk = ctypes.c_size_t(handles * CHUNK), ctypes.c_size_t(CHUNK)
    zero = ctypes.c_ulonglong(0)
    for _ in range(rounds):
        work()
        at = ctypes.c_ulonglong()
        timed(
            found,
            "reserve",
            lambda at=at: cuda.cuMemAddressReserve(
                ctypes.byref(at), size, chunk, zero, zero
            ),
        )
        made = [ctypes.c_ulonglong() for _ in range(handles)]
        for one in made:
            timed(
                found,
                "create",
                lambda one=one: cuda.cuMemCreate(
                    ctypes.byref(one), chunk, ctypes.byref(prop), zero
                ),
            )
        for i, one in enumerate(made):
            place = ctypes.c_ulonglong(at.value + i * CHUNK)
            timed(
                found,
                "map",
                lambda place=place, one=one: cuda.cuMemMap(
                    place, chunk, ctypes.c_size_t(0), one, zero
                ),
            )
        timed(
            found,
            "set access",
            lambda at=at: cuda.cuMemSetAccess(
                at, size, ctypes.byref(access), ctypes.c_size_t(1)
            ),
        )
        for i in range(handles):
            place = ctypes.c_ulonglong(at.value + i * CHUNK)
            timed(found, "unmap", lambda place=place: cuda.cuMemUnmap(place, chunk))
        for one in made:
            timed(found, "release", lambda one=one: cuda.cuMemRelease(one))
        timed(found, "free address", lambda at=at: cuda.cuMemAddressFree(at, size))
    return {name: statistics.median(times) for name, times in found.items()}


def main():
    quick = sys.argv[1:] == ["--quick"]
    torch.cuda.init()
    matrix = torch.randn(4096, 4096, device="cuda")
    cuda = ctypes.CDLL("libcuda.so.1")

    def load():
        for _ in range(20):
            matrix @ matrix

    rounds = 5 if quick else 20
    found = {"idle": measured(cuda, rounds, 16, lambda: None)}
    found["loaded"] = measured(cuda, rounds, 16, load)
    for handles in (1, 64, 256, 1024):
        found[f"set access of {handles}"] = measured(cuda, 3, handles, lambda: None)[
            "set access"
        ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
