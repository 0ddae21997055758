"""Kernels on stitched memory beside the same on memory of cudaMalloc."""

import json
import statistics
import sys

import torch

import drivetrain_memory


def seconds_of(work, rounds):
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def scattered(count):
    """Bytes whose chunks lie apart, in an order that is none."""
    size = 2 * 2**20
    blocks = [
        torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2 * count)
    ]
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(1))
    for index in order[: len(blocks) // 2].tolist():
        blocks[index] = None
    return blocks


def of_cuda_malloc(size):
    """A tensor over memory of cudaMalloc itself."""
    import ctypes

    # By the name under which torch has loaded it.
    major = torch.version.cuda.split(".")[0]
    cudart = ctypes.CDLL(f"libcudart.so.{major}")
    pointer = ctypes.c_void_p()
    if cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)):
        raise MemoryError(size)

    class Raw:
        __cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer.value, False),
            "version": 3,
        }

    return torch.as_tensor(Raw(), device="cuda")


def main():
    rounds = int(sys.argv[1])
    drivetrain_memory.enable(headroom=0.0)
    torch.cuda.init()
    size = 8192 * 8192 * 2
    torch.empty(1, device="cuda")
    kept = scattered(3 * size // (2 * 2**20) + 8)
    before = drivetrain_memory.stats().remapped
    stitched = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(3)]
    moved = drivetrain_memory.stats().remapped - before
    plain = [of_cuda_malloc(size) for _ in range(3)]
    ratios = {}
    for name, work in (("gemm", gemm), ("copy", copy), ("attention", attention)):
        times = {"plain": [], "stitched": []}
        for turn in range(6):
            pairs = [("plain", plain), ("stitched", stitched)]
            for kind, memory in pairs if turn % 2 == 0 else pairs[::-1]:
                times[kind].append(seconds_of(lambda m=memory, w=work: w(*m), rounds))
        ratios[name] = statistics.median(times["plain"]) / statistics.median(
            times["stitched"]
        )
    del kept
    print(json.dumps({"ratios": ratios, "chunks_moved": moved}))


def gemm(a, b, c):
    left, right, out = (x.view(torch.bfloat16).view(8192, 8192) for x in (a, b, c))
    torch.mm(left, right, out=out)


def copy(a, b, c):
    del c
    b.copy_(a)


def attention(a, b, c):
    parts = [x.view(torch.bfloat16).view(8, 16, 4096, 128) for x in (a, b, c)]
    torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)


if __name__ == "__main__":
    main()
