from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FromAgent(_message.Message):
    __slots__ = ("hello", "workers", "heartbeat", "broken", "goodbye", "leave", "stuck", "flights", "alert", "check", "notice", "saved")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    FLIGHTS_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    workers: WorkerReports
    heartbeat: Heartbeat
    broken: Broken
    goodbye: Goodbye
    leave: LeaveRequest
    stuck: Stuck
    flights: Flights
    alert: Alert
    check: CheckResult
    notice: CapacityNotice
    saved: Saved
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., workers: _Optional[_Union[WorkerReports, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., broken: _Optional[_Union[Broken, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., leave: _Optional[_Union[LeaveRequest, _Mapping]] = ..., stuck: _Optional[_Union[Stuck, _Mapping]] = ..., flights: _Optional[_Union[Flights, _Mapping]] = ..., alert: _Optional[_Union[Alert, _Mapping]] = ..., check: _Optional[_Union[CheckResult, _Mapping]] = ..., notice: _Optional[_Union[CapacityNotice, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ...) -> None: ...

class CapacityNotice(_message.Message):
    __slots__ = ("within_s", "reason", "is_withdrawn", "is_only_told")
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    IS_ONLY_TOLD_FIELD_NUMBER: _ClassVar[int]
    within_s: float
    reason: str
    is_withdrawn: bool
    is_only_told: bool
    def __init__(self, within_s: _Optional[float] = ..., reason: _Optional[str] = ..., is_withdrawn: _Optional[bool] = ..., is_only_told: _Optional[bool] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("request", "step", "seconds", "failure")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    request: str
    step: int
    seconds: float
    failure: str
    def __init__(self, request: _Optional[str] = ..., step: _Optional[int] = ..., seconds: _Optional[float] = ..., failure: _Optional[str] = ...) -> None: ...

class Flights(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerFlight]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerFlight, _Mapping]]] = ...) -> None: ...

class WorkerFlight(_message.Message):
    __slots__ = ("name", "operations")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, name: _Optional[str] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("epoch", "step", "collective", "name", "seconds", "is_waiting")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_WAITING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    collective: int
    name: str
    seconds: float
    is_waiting: bool
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., collective: _Optional[int] = ..., name: _Optional[str] = ..., seconds: _Optional[float] = ..., is_waiting: _Optional[bool] = ...) -> None: ...

class Alert(_message.Message):
    __slots__ = ("kind", "reason", "is_over", "failure")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    reason: str
    is_over: bool
    failure: Failure
    def __init__(self, kind: _Optional[str] = ..., reason: _Optional[str] = ..., is_over: _Optional[bool] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class CheckResult(_message.Message):
    __slots__ = ("is_faulty", "reason", "faulty")
    class FaultyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IS_FAULTY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAULTY_FIELD_NUMBER: _ClassVar[int]
    is_faulty: bool
    reason: str
    faulty: _containers.ScalarMap[str, str]
    def __init__(self, is_faulty: _Optional[bool] = ..., reason: _Optional[str] = ..., faulty: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Stuck(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "host", "pid", "num_slots", "workers", "terms", "agent", "broken", "leave", "machine", "alerts", "check", "notice", "saved")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    pid: int
    num_slots: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerReport]
    terms: Terms
    agent: str
    broken: Broken
    leave: LeaveRequest
    machine: str
    alerts: _containers.RepeatedCompositeFieldContainer[Alert]
    check: CheckResult
    notice: CapacityNotice
    saved: Saved
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., num_slots: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerReport, _Mapping]]] = ..., terms: _Optional[_Union[Terms, _Mapping]] = ..., agent: _Optional[str] = ..., broken: _Optional[_Union[Broken, _Mapping]] = ..., leave: _Optional[_Union[LeaveRequest, _Mapping]] = ..., machine: _Optional[str] = ..., alerts: _Optional[_Iterable[_Union[Alert, _Mapping]]] = ..., check: _Optional[_Union[CheckResult, _Mapping]] = ..., notice: _Optional[_Union[CapacityNotice, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("min_workers", "max_workers", "unit", "last_call_s", "patience_s", "stuck_s")
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LAST_CALL_S_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    STUCK_S_FIELD_NUMBER: _ClassVar[int]
    min_workers: int
    max_workers: int
    unit: int
    last_call_s: float
    patience_s: float
    stuck_s: float
    def __init__(self, min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ..., unit: _Optional[int] = ..., last_call_s: _Optional[float] = ..., patience_s: _Optional[float] = ..., stuck_s: _Optional[float] = ...) -> None: ...

class WorkerReports(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[WorkerReport]
    def __init__(self, reports: _Optional[_Iterable[_Union[WorkerReport, _Mapping]]] = ...) -> None: ...

class Broken(_message.Message):
    __slots__ = ("epoch", "worker", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    worker: str
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., worker: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("name", "slot", "state", "exit_code", "reason", "given_up", "failure", "progress")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[WorkerReport.State]
        STARTING: _ClassVar[WorkerReport.State]
        READY: _ClassVar[WorkerReport.State]
        FINISHED: _ClassVar[WorkerReport.State]
        FAILED: _ClassVar[WorkerReport.State]
        LEFT: _ClassVar[WorkerReport.State]
    UNKNOWN: WorkerReport.State
    STARTING: WorkerReport.State
    READY: WorkerReport.State
    FINISHED: WorkerReport.State
    FAILED: WorkerReport.State
    LEFT: WorkerReport.State
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    slot: int
    state: WorkerReport.State
    exit_code: int
    reason: str
    given_up: bool
    failure: Failure
    progress: WorkerProgress
    def __init__(self, name: _Optional[str] = ..., slot: _Optional[int] = ..., state: _Optional[_Union[WorkerReport.State, str]] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., given_up: _Optional[bool] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., progress: _Optional[_Union[WorkerProgress, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("failure_class", "cause", "evidence", "blames_node", "traceback", "place", "is_echo")
    FAILURE_CLASS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    BLAMES_NODE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    IS_ECHO_FIELD_NUMBER: _ClassVar[int]
    failure_class: str
    cause: str
    evidence: str
    blames_node: bool
    traceback: str
    place: str
    is_echo: bool
    def __init__(self, failure_class: _Optional[str] = ..., cause: _Optional[str] = ..., evidence: _Optional[str] = ..., blames_node: _Optional[bool] = ..., traceback: _Optional[str] = ..., place: _Optional[str] = ..., is_echo: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("workers", "hardware")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerProgress]
    hardware: Hardware
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerProgress, _Mapping]]] = ..., hardware: _Optional[_Union[Hardware, _Mapping]] = ...) -> None: ...

class Hardware(_message.Message):
    __slots__ = ("addresses", "pod", "cpu_share", "memory_used", "memory_total", "gpus", "nics", "missing", "used_cpus", "used_memory")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NICS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    USED_CPUS_FIELD_NUMBER: _ClassVar[int]
    USED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    pod: str
    cpu_share: float
    memory_used: int
    memory_total: int
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    nics: _containers.RepeatedCompositeFieldContainer[Nic]
    missing: _containers.RepeatedScalarFieldContainer[str]
    used_cpus: float
    used_memory: int
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., pod: _Optional[str] = ..., cpu_share: _Optional[float] = ..., memory_used: _Optional[int] = ..., memory_total: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., nics: _Optional[_Iterable[_Union[Nic, _Mapping]]] = ..., missing: _Optional[_Iterable[str]] = ..., used_cpus: _Optional[float] = ..., used_memory: _Optional[int] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("number", "name", "busy_share", "memory_used", "memory_total", "temperature_c", "ecc_errors", "fault")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    busy_share: float
    memory_used: int
    memory_total: int
    temperature_c: float
    ecc_errors: int
    fault: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., busy_share: _Optional[float] = ..., memory_used: _Optional[int] = ..., memory_total: _Optional[int] = ..., temperature_c: _Optional[float] = ..., ecc_errors: _Optional[int] = ..., fault: _Optional[str] = ...) -> None: ...

class Nic(_message.Message):
    __slots__ = ("name", "received", "sent", "errors", "is_up")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    IS_UP_FIELD_NUMBER: _ClassVar[int]
    name: str
    received: float
    sent: float
    errors: int
    is_up: bool
    def __init__(self, name: _Optional[str] = ..., received: _Optional[float] = ..., sent: _Optional[float] = ..., errors: _Optional[int] = ..., is_up: _Optional[bool] = ...) -> None: ...

class WorkerProgress(_message.Message):
    __slots__ = ("name", "pid", "step", "step_s", "silent_s", "phase", "phase_s", "accounts", "window")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_S_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    pid: int
    step: int
    step_s: float
    silent_s: float
    phase: str
    phase_s: float
    accounts: _containers.RepeatedCompositeFieldContainer[Account]
    window: SectionWindow
    def __init__(self, name: _Optional[str] = ..., pid: _Optional[int] = ..., step: _Optional[int] = ..., step_s: _Optional[float] = ..., silent_s: _Optional[float] = ..., phase: _Optional[str] = ..., phase_s: _Optional[float] = ..., accounts: _Optional[_Iterable[_Union[Account, _Mapping]]] = ..., window: _Optional[_Union[SectionWindow, _Mapping]] = ...) -> None: ...

class Account(_message.Message):
    __slots__ = ("epoch", "forming_s", "redone_s", "steps_s", "outside_s", "saving_s", "first_step", "last_step", "first_sample", "last_sample")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FORMING_S_FIELD_NUMBER: _ClassVar[int]
    REDONE_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_S_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_S_FIELD_NUMBER: _ClassVar[int]
    SAVING_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    LAST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    forming_s: float
    redone_s: float
    steps_s: float
    outside_s: float
    saving_s: float
    first_step: int
    last_step: int
    first_sample: int
    last_sample: int
    def __init__(self, epoch: _Optional[int] = ..., forming_s: _Optional[float] = ..., redone_s: _Optional[float] = ..., steps_s: _Optional[float] = ..., outside_s: _Optional[float] = ..., saving_s: _Optional[float] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., first_sample: _Optional[int] = ..., last_sample: _Optional[int] = ...) -> None: ...

class SectionWindow(_message.Message):
    __slots__ = ("number", "epoch", "num_steps", "sections_s", "step_s", "num_samples")
    class SectionsSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    number: int
    epoch: int
    num_steps: int
    sections_s: _containers.ScalarMap[str, float]
    step_s: float
    num_samples: float
    def __init__(self, number: _Optional[int] = ..., epoch: _Optional[int] = ..., num_steps: _Optional[int] = ..., sections_s: _Optional[_Mapping[str, float]] = ..., step_s: _Optional[float] = ..., num_samples: _Optional[float] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("welcome", "world", "command", "notice", "save")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    world: World
    command: Command
    notice: Notice
    save: SaveRequest
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., world: _Optional[_Union[World, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., save: _Optional[_Union[SaveRequest, _Mapping]] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("kind", "subject", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    subject: str
    reason: str
    def __init__(self, kind: _Optional[str] = ..., subject: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("incarnation", "heartbeat_s", "place")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    heartbeat_s: float
    place: int
    def __init__(self, incarnation: _Optional[int] = ..., heartbeat_s: _Optional[float] = ..., place: _Optional[int] = ...) -> None: ...

class World(_message.Message):
    __slots__ = ("epoch", "members", "reason", "broken_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BROKEN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    reason: str
    broken_epoch: int
    def __init__(self, epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., reason: _Optional[str] = ..., broken_epoch: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "node")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    node: str
    def __init__(self, name: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("what", "reason", "within_s", "exit_code", "ended_at_s")
    class What(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NOTHING: _ClassVar[Command.What]
        STOP_ALL: _ClassVar[Command.What]
        LEAVE: _ClassVar[Command.What]
        DUMP_STACKS: _ClassVar[Command.What]
        CHECK: _ClassVar[Command.What]
    NOTHING: Command.What
    STOP_ALL: Command.What
    LEAVE: Command.What
    DUMP_STACKS: Command.What
    CHECK: Command.What
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_S_FIELD_NUMBER: _ClassVar[int]
    what: Command.What
    reason: str
    within_s: float
    exit_code: int
    ended_at_s: float
    def __init__(self, what: _Optional[_Union[Command.What, str]] = ..., reason: _Optional[str] = ..., within_s: _Optional[float] = ..., exit_code: _Optional[int] = ..., ended_at_s: _Optional[float] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class KeysRequest(_message.Message):
    __slots__ = ("keys", "timeout_s", "prefix")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    timeout_s: float
    prefix: str
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., timeout_s: _Optional[float] = ..., prefix: _Optional[str] = ...) -> None: ...

class Values(_message.Message):
    __slots__ = ("values", "found", "others")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    found: bool
    others: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, values: _Optional[_Iterable[bytes]] = ..., found: _Optional[bool] = ..., others: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...

class Addition(_message.Message):
    __slots__ = ("key", "amount", "call")
    KEY_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    key: str
    amount: int
    call: bytes
    def __init__(self, key: _Optional[str] = ..., amount: _Optional[int] = ..., call: _Optional[bytes] = ...) -> None: ...

class Number(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("key", "expected", "desired")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    key: str
    expected: bytes
    desired: bytes
    def __init__(self, key: _Optional[str] = ..., expected: _Optional[bytes] = ..., desired: _Optional[bytes] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("name", "num_samples", "shard_size", "num_epochs", "shuffle", "seed", "max_failures")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_FAILURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_samples: int
    shard_size: int
    num_epochs: int
    shuffle: str
    seed: int
    max_failures: int
    def __init__(self, name: _Optional[str] = ..., num_samples: _Optional[int] = ..., shard_size: _Optional[int] = ..., num_epochs: _Optional[int] = ..., shuffle: _Optional[str] = ..., seed: _Optional[int] = ..., max_failures: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("dataset", "worker", "num_shards", "timeout_s", "with_indices", "held")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    WITH_INDICES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    worker: str
    num_shards: int
    timeout_s: float
    with_indices: bool
    held: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dataset: _Optional[str] = ..., worker: _Optional[str] = ..., num_shards: _Optional[int] = ..., timeout_s: _Optional[float] = ..., with_indices: _Optional[bool] = ..., held: _Optional[_Iterable[int]] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("fence", "epoch", "start", "end", "indices")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    fence: int
    epoch: int
    start: int
    end: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, fence: _Optional[int] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("shards", "finished")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    finished: bool
    def __init__(self, shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., finished: _Optional[bool] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("dataset", "worker", "commits")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    worker: str
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    def __init__(self, dataset: _Optional[str] = ..., worker: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("fence", "upto")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    fence: int
    upto: int
    def __init__(self, fence: _Optional[int] = ..., upto: _Optional[int] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("refusals",)
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    refusals: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, refusals: _Optional[_Iterable[str]] = ...) -> None: ...

class ReturnRequest(_message.Message):
    __slots__ = ("dataset", "worker", "fences", "failed", "reason")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    worker: str
    fences: _containers.RepeatedScalarFieldContainer[int]
    failed: bool
    reason: str
    def __init__(self, dataset: _Optional[str] = ..., worker: _Optional[str] = ..., fences: _Optional[_Iterable[int]] = ..., failed: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Growth(_message.Message):
    __slots__ = ("dataset", "num_samples", "close", "caller", "call")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    num_samples: int
    close: bool
    caller: str
    call: int
    def __init__(self, dataset: _Optional[str] = ..., num_samples: _Optional[int] = ..., close: _Optional[bool] = ..., caller: _Optional[str] = ..., call: _Optional[int] = ...) -> None: ...

class DeadShard(_message.Message):
    __slots__ = ("epoch", "start", "end", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start: int
    end: int
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class DatasetStatus(_message.Message):
    __slots__ = ("dataset", "num_samples_done", "num_shards_done", "num_leased", "num_waiting", "dead", "finished")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASED_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    num_samples_done: int
    num_shards_done: int
    num_leased: int
    num_waiting: int
    dead: _containers.RepeatedCompositeFieldContainer[DeadShard]
    finished: bool
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., num_samples_done: _Optional[int] = ..., num_shards_done: _Optional[int] = ..., num_leased: _Optional[int] = ..., num_waiting: _Optional[int] = ..., dead: _Optional[_Iterable[_Union[DeadShard, _Mapping]]] = ..., finished: _Optional[bool] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node", "host", "pid", "num_slots", "silent_s", "workers", "hardware", "alerts", "notice", "is_leaving")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    pid: int
    num_slots: int
    silent_s: float
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    hardware: Hardware
    alerts: _containers.RepeatedCompositeFieldContainer[Alert]
    notice: CapacityNotice
    is_leaving: bool
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., num_slots: _Optional[int] = ..., silent_s: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., hardware: _Optional[_Union[Hardware, _Mapping]] = ..., alerts: _Optional[_Iterable[_Union[Alert, _Mapping]]] = ..., notice: _Optional[_Union[CapacityNotice, _Mapping]] = ..., is_leaving: _Optional[bool] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("name", "status", "rank", "pid", "step", "step_s", "silent_s", "phase", "phase_s", "sections_s", "slowness", "slow_section", "num_samples")
    class SectionsSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_S_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_S_FIELD_NUMBER: _ClassVar[int]
    SLOWNESS_FIELD_NUMBER: _ClassVar[int]
    SLOW_SECTION_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    status: str
    rank: int
    pid: int
    step: int
    step_s: float
    silent_s: float
    phase: str
    phase_s: float
    sections_s: _containers.ScalarMap[str, float]
    slowness: float
    slow_section: str
    num_samples: float
    def __init__(self, name: _Optional[str] = ..., status: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., step: _Optional[int] = ..., step_s: _Optional[float] = ..., silent_s: _Optional[float] = ..., phase: _Optional[str] = ..., phase_s: _Optional[float] = ..., sections_s: _Optional[_Mapping[str, float]] = ..., slowness: _Optional[float] = ..., slow_section: _Optional[str] = ..., num_samples: _Optional[float] = ...) -> None: ...

class LostTime(_message.Message):
    __slots__ = ("what", "cause", "seconds", "times")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    what: str
    cause: str
    seconds: float
    times: int
    def __init__(self, what: _Optional[str] = ..., cause: _Optional[str] = ..., seconds: _Optional[float] = ..., times: _Optional[int] = ...) -> None: ...

class TimeLedger(_message.Message):
    __slots__ = ("total_s", "effective_s", "num_steps", "lost", "num_samples")
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_S_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    total_s: float
    effective_s: float
    num_steps: int
    lost: _containers.RepeatedCompositeFieldContainer[LostTime]
    num_samples: int
    def __init__(self, total_s: _Optional[float] = ..., effective_s: _Optional[float] = ..., num_steps: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[LostTime, _Mapping]]] = ..., num_samples: _Optional[int] = ...) -> None: ...

class Exclusion(_message.Message):
    __slots__ = ("machine", "node", "reason", "at_s")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    machine: str
    node: str
    reason: str
    at_s: float
    def __init__(self, machine: _Optional[str] = ..., node: _Optional[str] = ..., reason: _Optional[str] = ..., at_s: _Optional[float] = ...) -> None: ...

class ReadmitRequest(_message.Message):
    __slots__ = ("machine",)
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    machine: str
    def __init__(self, machine: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("job", "incarnation", "epoch", "world_size", "reason", "up_s", "nodes", "datasets", "ended", "exit_code", "time", "excluded", "save", "admission")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UP_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    job: str
    incarnation: int
    epoch: int
    world_size: int
    reason: str
    up_s: float
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetStatus]
    ended: str
    exit_code: int
    time: TimeLedger
    excluded: _containers.RepeatedCompositeFieldContainer[Exclusion]
    save: SaveStatus
    admission: Admission
    def __init__(self, job: _Optional[str] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., world_size: _Optional[int] = ..., reason: _Optional[str] = ..., up_s: _Optional[float] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., datasets: _Optional[_Iterable[_Union[DatasetStatus, _Mapping]]] = ..., ended: _Optional[str] = ..., exit_code: _Optional[int] = ..., time: _Optional[_Union[TimeLedger, _Mapping]] = ..., excluded: _Optional[_Iterable[_Union[Exclusion, _Mapping]]] = ..., save: _Optional[_Union[SaveStatus, _Mapping]] = ..., admission: _Optional[_Union[Admission, _Mapping]] = ...) -> None: ...

class SaveStatus(_message.Message):
    __slots__ = ("request", "saved")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    request: str
    saved: Saved
    def __init__(self, request: _Optional[str] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("follow",)
    FROM_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    follow: bool
    def __init__(self, follow: _Optional[bool] = ..., **kwargs) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "at_s", "kind", "subject", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_s: float
    kind: str
    subject: str
    reason: str
    def __init__(self, number: _Optional[int] = ..., at_s: _Optional[float] = ..., kind: _Optional[str] = ..., subject: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("node", "within_s", "reason", "exit_code")
    NODE_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    within_s: float
    reason: str
    exit_code: int
    def __init__(self, node: _Optional[str] = ..., within_s: _Optional[float] = ..., reason: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("request", "within_s", "reason")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request: str
    within_s: float
    reason: str
    def __init__(self, request: _Optional[str] = ..., within_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("nodes", "reason")
    NODES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, nodes: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason", "exit_code")
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    exit_code: int
    def __init__(self, reason: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...
