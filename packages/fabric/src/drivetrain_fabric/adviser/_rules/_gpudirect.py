"""Whether cards write straight into the memory of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._rules._say import env, host
from drivetrain_fabric.adviser._rules._sources import GPU, manual

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._facts import Facts

_LEVEL, _DMABUF = "NCCL_NET_GDR_LEVEL", "NCCL_DMABUF_ENABLE"
_ORDERING = "NCCL_IB_PCI_RELAXED_ORDERING"
_SEVERAL_RANKS = "NCCL_MULTI_RANK_GPU_ENABLE"
_MODULES = frozenset({"nvidia_peermem", "nv_peer_mem"})
# The first kernel that shares buffers of devices with RDMA cards.
_DMA_BUF_KERNEL = (5, 12)
_DMA_BUF_NCCL = (2, 13)
_SHOWN = 4


def can_use_dma_buf(facts: Facts) -> bool | None:
    """Returns whether no extra module is needed; None where that is not known.

    Args:
        facts: The kernel, the driver, NCCL, and what is set.

    Example:
        >>> from drivetrain_fabric.adviser import Facts
        >>> can_use_dma_buf(Facts(kernel=(6, 8), has_open_driver=False))
        False
    """
    if facts.nccl < _DMA_BUF_NCCL or facts.number_of(_DMABUF) == 0:
        return False
    if facts.kernel is not None and facts.kernel < _DMA_BUF_KERNEL:
        return False
    if facts.has_open_driver is None or facts.kernel is None:
        return None if facts.has_open_driver is not False else False
    return facts.has_open_driver


def advise_gpudirect(facts: Facts) -> list[Advice | Gap]:
    """Returns what keeps cards and GPUs from each other.

    Args:
        facts: What is known.
    """
    if facts.transport not in ("infiniband", "roce") or not facts.num_gpus:
        return []
    return [*_module(facts), *_level(facts), *_acs(facts), *_ordering(facts)]


def _module(facts: Facts) -> list[Advice | Gap]:
    if facts.modules is None:
        lacks = "which modules the kernel has loaded"
        give = "run it on the host, with /sys mounted"
        return [Gap(subject="GPUDirect RDMA", lacks=lacks, give=give)]
    without = can_use_dma_buf(facts)
    if facts.modules & _MODULES or without:
        return []
    if without is None:
        lacks = "whether NVIDIA's open kernel modules are in use: /proc/driver/nvidia"
        give = "run it on the host, with the driver loaded"
        return [Gap(subject="GPUDirect RDMA", lacks=lacks, give=give)]
    because = (
        "no nvidia_peermem, and no dma-buf (which needs Linux 5.12, the open kernel "
        "modules of NVIDIA and NCCL 2.13): all data go through the host's memory"
    )
    return [host("nvidia_peermem", "modprobe nvidia-peermem", "bad", because, GPU)]


def _level(facts: Facts) -> list[Advice | Gap]:
    value = facts.value_of(_LEVEL)
    if value is None:
        if facts.gdr_distance != "PHB":
            return []
        because = (
            "the farthest GPU reaches its card through the processor, PHB: farther than "
            "NCCL goes by itself on most of them"
        )
        return [env(_LEVEL, "PHB", "try", because)]
    if value.upper() in ("LOC", "0") and facts.number_of(_SEVERAL_RANKS) != 1:
        because = f"{value} turns GPUDirect RDMA off: data go through the host's memory"
        return [env(_LEVEL, None, "warn", because)]
    words = {"1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS"}
    if value in words:
        because = f"what {value} means changes with versions; a word does not"
        return [env(_LEVEL, words[value], "try", because)]
    return []


def _acs(facts: Facts) -> list[Advice | Gap]:
    if facts.is_virtual:
        return []
    if facts.acs_bridges is None:
        lacks = "whether PCI bridges redirect what devices send each other (ACS)"
        return [Gap(subject="ACS", lacks=lacks, give="run it as root")]
    if not facts.acs_bridges or facts.is_virtual is None:
        return []
    bridges = facts.acs_bridges
    shown = ", ".join(bridges[:_SHOWN])
    more = f" and {len(bridges) - _SHOWN} more" if len(bridges) > _SHOWN else ""
    because = (
        f"{shown}{more} send what GPUs and cards send each other up to the processor: "
        "slow, or a hang"
    )
    do = "; ".join(f"setpci -s {bridge} ECAP_ACS+0x6.w=0000" for bridge in bridges)
    return [host("ACS", do, "warn", because, GPU)]


def _ordering(facts: Facts) -> list[Advice | Gap]:
    if facts.number_of(_ORDERING) != 0 or not facts.is_virtual:
        return []
    because = "in a virtual machine relaxed ordering helps much, and 0 turns it off"
    return [env(_ORDERING, None, "warn", because, manual(_ORDERING))]
