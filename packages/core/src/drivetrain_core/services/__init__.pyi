from drivetrain_core.services._cache_folder import cache_folder as cache_folder
from drivetrain_core.services._dcp_checkpointer import (
    DcpCheckpointer as DcpCheckpointer,
)
from drivetrain_core.services._local_cluster import local_cluster as local_cluster
from drivetrain_core.services._local_group import new_local_group as new_local_group
from drivetrain_core.services._lookup import ServiceFactory as ServiceFactory
from drivetrain_core.services._lookup import get_service as get_service
from drivetrain_core.services._lookup import service_factory as service_factory
from drivetrain_core.services._pack_state import pack_state as pack_state
from drivetrain_core.services._plan_restoration import (
    plan_restoration as plan_restoration,
)
from drivetrain_core.services._torch_process_group import (
    TorchProcessGroupFactory as TorchProcessGroupFactory,
)
from drivetrain_core.services._torch_process_group import (
    destroy_process_group as destroy_process_group,
)
from drivetrain_core.services._torch_process_group import (
    init_process_group as init_process_group,
)
from drivetrain_core.services._unwritable import unwritable as unwritable
from drivetrain_core.services._whole_file import write_whole as write_whole
from drivetrain_core.services.batch_plan import BatchPlan as BatchPlan
from drivetrain_core.services.batch_plan import RankBatch as RankBatch
from drivetrain_core.services.capacity_notice import CapacityNotice as CapacityNotice
from drivetrain_core.services.checkpointer import Checkpointer as Checkpointer
from drivetrain_core.services.checkpointer import SaveHandle as SaveHandle
from drivetrain_core.services.chunked_tensor import Chunk as Chunk
from drivetrain_core.services.chunked_tensor import ChunkedTensor as ChunkedTensor
from drivetrain_core.services.cloud_notices import CloudNotices as CloudNotices
from drivetrain_core.services.cloud_notices import NoCloud as NoCloud
from drivetrain_core.services.cloud_notices import NoticeWatch as NoticeWatch
from drivetrain_core.services.cluster_spec import ClusterSpec as ClusterSpec
from drivetrain_core.services.cluster_spec import Device as Device
from drivetrain_core.services.cluster_spec import Link as Link
from drivetrain_core.services.cluster_spec import Nic as Nic
from drivetrain_core.services.cluster_spec import NodeGroup as NodeGroup
from drivetrain_core.services.cluster_spec import Price as Price
from drivetrain_core.services.cluster_spec import Switch as Switch
from drivetrain_core.services.job_store import JobStore as JobStore
from drivetrain_core.services.job_store import NoJobStore as NoJobStore
from drivetrain_core.services.model_layout import AppliedLayout as AppliedLayout
from drivetrain_core.services.model_layout import DeviceRates as DeviceRates
from drivetrain_core.services.model_layout import DividedLoss as DividedLoss
from drivetrain_core.services.model_layout import LayoutPlan as LayoutPlan
from drivetrain_core.services.model_layout import MeshRanking as MeshRanking
from drivetrain_core.services.model_layout import ModelLayout as ModelLayout
from drivetrain_core.services.model_layout import NoModelLayout as NoModelLayout
from drivetrain_core.services.model_layout import PipelinePasses as PipelinePasses
from drivetrain_core.services.model_layout import Placement as Placement
from drivetrain_core.services.packed_state import PackedState as PackedState
from drivetrain_core.services.plain_json import from_json as from_json
from drivetrain_core.services.plain_json import to_json as to_json
from drivetrain_core.services.plan_search import NoPlanSearch as NoPlanSearch
from drivetrain_core.services.plan_search import PlanSearch as PlanSearch
from drivetrain_core.services.plan_search import SearchProgress as SearchProgress
from drivetrain_core.services.plan_search import SearchReport as SearchReport
from drivetrain_core.services.plan_search import SearchRequest as SearchRequest
from drivetrain_core.services.process_group import (
    ProcessGroupFactory as ProcessGroupFactory,
)
from drivetrain_core.services.restoration import Restoration as Restoration
from drivetrain_core.services.state_entry import StateEntry as StateEntry
from drivetrain_core.services.state_entry import is_partial as is_partial
from drivetrain_core.services.state_entry import merge_entries as merge_entries
from drivetrain_core.services.tensor_spec import TensorPart as TensorPart
from drivetrain_core.services.tensor_spec import TensorSpec as TensorSpec
