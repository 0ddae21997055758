"""The seams of Drivetrain: small protocols by which its packages meet.

Each protocol has a fallback here, so that every package works alone, and a contract
suite in `drivetrain_core.testing`. Another package offers a better provider by an entry
point in the group `drivetrain.services`; `get_service` finds it. Importing this package
imports no torch: names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_core.services._dcp_checkpointer import DcpCheckpointer
    from drivetrain_core.services._local_cluster import local_cluster
    from drivetrain_core.services._lookup import (
        ServiceFactory,
        get_service,
        service_factory,
    )
    from drivetrain_core.services._model_state import ModelState
    from drivetrain_core.services._plan_restoration import plan_restoration
    from drivetrain_core.services._torch_process_group import (
        TorchProcessGroupFactory,
        destroy_process_group,
        init_process_group,
    )
    from drivetrain_core.services._unwritable import unwritable
    from drivetrain_core.services._whole_file import write_whole
    from drivetrain_core.services.batch_plan import BatchPlan, RankBatch
    from drivetrain_core.services.capacity import (
        CapacityNotice,
        LocalNotices,
        Membership,
        MembershipListener,
        NoticeSource,
    )
    from drivetrain_core.services.checkpointer import Checkpointer, SaveHandle
    from drivetrain_core.services.chunked_tensor import Chunk, ChunkedTensor
    from drivetrain_core.services.cloud_notices import (
        CloudNotices,
        NoCloud,
        NoticeWatch,
    )
    from drivetrain_core.services.cluster_spec import (
        ClusterSpec,
        Device,
        Link,
        Nic,
        NodeGroup,
        Price,
        Switch,
    )
    from drivetrain_core.services.model_layout import (
        AppliedLayout,
        DeviceRates,
        DividedLoss,
        LayoutPlan,
        MeshRanking,
        ModelLayout,
        NoModelLayout,
        PipelinePasses,
        Placement,
    )
    from drivetrain_core.services.packed_state import PackedState
    from drivetrain_core.services.plain_json import from_json, to_json
    from drivetrain_core.services.plan_search import (
        NoPlanSearch,
        PlanSearch,
        SearchProgress,
        SearchReport,
        SearchRequest,
    )
    from drivetrain_core.services.process_group import ProcessGroupFactory
    from drivetrain_core.services.restoration import Restoration
    from drivetrain_core.services.state_entry import (
        StateEntry,
        is_partial,
        merge_entries,
    )
    from drivetrain_core.services.state_packer import StatePacker, pack_state
    from drivetrain_core.services.state_source import (
        StateSource,
        TensorPart,
        TensorSpec,
    )

__all__ = [
    "AppliedLayout",
    "BatchPlan",
    "CapacityNotice",
    "Checkpointer",
    "Chunk",
    "ChunkedTensor",
    "CloudNotices",
    "ClusterSpec",
    "DcpCheckpointer",
    "Device",
    "DeviceRates",
    "DividedLoss",
    "LayoutPlan",
    "Link",
    "LocalNotices",
    "Membership",
    "MembershipListener",
    "MeshRanking",
    "ModelLayout",
    "ModelState",
    "Nic",
    "NoCloud",
    "NoModelLayout",
    "NoPlanSearch",
    "NodeGroup",
    "NoticeSource",
    "NoticeWatch",
    "PackedState",
    "PipelinePasses",
    "Placement",
    "PlanSearch",
    "Price",
    "ProcessGroupFactory",
    "RankBatch",
    "Restoration",
    "SaveHandle",
    "SearchProgress",
    "SearchReport",
    "SearchRequest",
    "ServiceFactory",
    "StateEntry",
    "StatePacker",
    "StateSource",
    "Switch",
    "TensorPart",
    "TensorSpec",
    "TorchProcessGroupFactory",
    "destroy_process_group",
    "from_json",
    "get_service",
    "init_process_group",
    "is_partial",
    "local_cluster",
    "merge_entries",
    "pack_state",
    "plan_restoration",
    "service_factory",
    "to_json",
    "unwritable",
    "write_whole",
]

_HOME = {
    "AppliedLayout": "model_layout",
    "BatchPlan": "batch_plan",
    "CapacityNotice": "capacity",
    "Checkpointer": "checkpointer",
    "Chunk": "chunked_tensor",
    "ChunkedTensor": "chunked_tensor",
    "CloudNotices": "cloud_notices",
    "ClusterSpec": "cluster_spec",
    "DcpCheckpointer": "_dcp_checkpointer",
    "Device": "cluster_spec",
    "DeviceRates": "model_layout",
    "DividedLoss": "model_layout",
    "LayoutPlan": "model_layout",
    "Link": "cluster_spec",
    "LocalNotices": "capacity",
    "Membership": "capacity",
    "MembershipListener": "capacity",
    "MeshRanking": "model_layout",
    "ModelLayout": "model_layout",
    "ModelState": "_model_state",
    "Nic": "cluster_spec",
    "NoCloud": "cloud_notices",
    "NoModelLayout": "model_layout",
    "NoPlanSearch": "plan_search",
    "NodeGroup": "cluster_spec",
    "NoticeSource": "capacity",
    "NoticeWatch": "cloud_notices",
    "PackedState": "packed_state",
    "PipelinePasses": "model_layout",
    "Placement": "model_layout",
    "PlanSearch": "plan_search",
    "Price": "cluster_spec",
    "ProcessGroupFactory": "process_group",
    "RankBatch": "batch_plan",
    "Restoration": "restoration",
    "SaveHandle": "checkpointer",
    "SearchProgress": "plan_search",
    "SearchReport": "plan_search",
    "SearchRequest": "plan_search",
    "ServiceFactory": "_lookup",
    "StateEntry": "state_entry",
    "StatePacker": "state_packer",
    "StateSource": "state_source",
    "Switch": "cluster_spec",
    "TensorPart": "state_source",
    "TensorSpec": "state_source",
    "TorchProcessGroupFactory": "_torch_process_group",
    "destroy_process_group": "_torch_process_group",
    "from_json": "plain_json",
    "get_service": "_lookup",
    "init_process_group": "_torch_process_group",
    "is_partial": "state_entry",
    "local_cluster": "_local_cluster",
    "merge_entries": "state_entry",
    "pack_state": "state_packer",
    "plan_restoration": "_plan_restoration",
    "service_factory": "_lookup",
    "to_json": "plain_json",
    "unwritable": "_unwritable",
    "write_whole": "_whole_file",
}


def __getattr__(name: str) -> object:
    """Loads a public name when it is first used."""
    return _load_export(__name__, _HOME, name)


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
