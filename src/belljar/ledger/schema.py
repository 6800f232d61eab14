"""The schema of a line, a checkpoint and a manifest, version 1, and of each kind's data. `docs/events.md` is this
file for people.

Pydantic, strict: what is read may have been made by an attacker. Data may carry more fields than are known here (a
    record never refuses to say more); what is required is required.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from belljar.events import Actor, Kind, Trust

SCHEMA_VERSION: Final = 1
MAX_LINE_BYTES: Final = 1 << 20
MAX_DATA_BYTES: Final = 64 << 10
MAX_SPILLED_BYTES: Final = 16 << 20
MAX_BODIES: Final = 64
SPILLED_BODY: Final = "data"
SPILLED: Final = {"$body": SPILLED_BODY}
"""What stands in a line for data that is too large for it: the canonical JSON is the body of that name."""

Hex64: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$", max_length=64)]
Hex128: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$", max_length=128)]
WallTime: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$", max_length=27)
]
BodyName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$", max_length=64)]
RunId: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z.-]{0,63}$", max_length=64)]
# Not strict about the sequence itself: events may hold tuples.
TextList: TypeAlias = Annotated[list[str], Field(strict=False)]
# Not Literal[1]: true equals 1.
Version: TypeAlias = Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**53 - 1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


class BodyRef(_Strict):
    """How a line names bytes that are stored beside the ledger."""

    name: BodyName
    sha256: Hex64 | None
    stored_sha256: Hex64 | None = None
    kept_bytes: Count
    total_bytes: Count

    @property
    def stored(self) -> str | None:
        """The digest under which the kept bytes are stored; None when nothing was kept or nothing says which."""
        return (self.stored_sha256 or self.sha256) if self.kept_bytes else None


class Line(_Strict):
    """One event as it stands in the ledger."""

    v: Version
    seq: Count
    prev: Hex64
    time: WallTime
    mono_ns: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$", max_length=20)]
    kind: Annotated[Kind, Field(strict=False)]
    cell: Annotated[str, StringConstraints(max_length=128)] | None
    actor: Annotated[Actor, Field(strict=False)]
    trust: Annotated[Trust, Field(strict=False)]
    data: dict[str, Any]
    bodies: Annotated[list[BodyRef], Field(max_length=MAX_BODIES)]


class Checkpoint(_Strict):
    """A signed statement: the first `size` lines have this root."""

    v: Version
    run_id: RunId
    number: Count
    prev: Hex64
    size: Count
    root: Hex64
    time: WallTime
    key: Hex64
    public_key: Hex64
    final: bool
    manifest_sha256: Hex64 | None
    signature: Hex128


class FileDigest(_Strict):
    """A file of the run directory."""

    sha256: Hex64
    bytes: Count


class BodyTotals(_Strict):
    """How many distinct bodies are stored, and their size."""

    count: Count
    bytes: Count


class Manifest(_Strict):
    """Every file of a finished run directory but the manifest, the checkpoints and the bodies, which are covered
    elsewhere."""

    v: Version
    run_id: RunId
    key: Hex64
    public_key: Hex64
    files: dict[str, FileDigest]
    bodies: BodyTotals


class _Data(BaseModel):
    # Built when the first event of its kind comes: a short run has a dozen of these kinds.
    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)


class _Op(_Data):
    op: Count


class _RunStarted(_Data):
    run_id: RunId
    kind: str
    argv: TextList
    key: Hex64
    belljar: str


class _RunEvaluated(_Data):
    interrupted: bool
    stopped: bool
    errors: TextList


class _RunFinished(_Data):
    outcome: Literal["completed", "failed", "interrupted"]
    exit_code: int | None


class _Reason(_Data):
    reason: str


class _ReapedCell(_Data):
    cell_id: str
    kind: str
    removed: TextList
    remaining: TextList


class _HostReaped(_Data):
    count: Count
    cells: Annotated[list[_ReapedCell], Field(strict=False)]


class _CellPlanned(_Data):
    policy_sha256: str
    tier: str
    emulated: bool
    layers: TextList


class _Timed(_Data):
    duration_ms: float


class _CellStarting(_Data):
    runtime: str
    tree: str


class _CellRenewed(_Data):
    done: TextList


class _CellTaken(_Data):
    waited_ms: float
    age_ms: float


class _CellChecking(_Data):
    phase: Literal["baseline", "call", "end"]


class _CellChecked(_CellChecking, _Timed, _Op):
    cause: str


class _CellFailed(_Reason):
    error: str


class _Destroyed(_Timed):
    clean: bool
    survivors: TextList
    checked: TextList = []
    not_checked: TextList = []


class _Template(_Data):
    key: str


class _TemplateBuilt(_Template, _Timed):
    pass


class _TemplateRejected(_Template, _Reason):
    pass


class _ExecStarted(_Op):
    argv: TextList
    cwd: str
    user: str
    env_names: TextList
    stdin: bool
    timeout_s: float | None


class _ExecOutput(_Op):
    stream: Literal["stdout", "stderr"]
    bytes: Count


class _OpBytes(_Op):
    bytes: Count


class _ExecSignal(_Op):
    signal: str
    scope: Literal["main", "tree"]


class _ExecCompleted(_Op, _Timed):
    status: Literal["exited", "signalled"]
    code: int
    stdout_bytes: Count
    stderr_bytes: Count
    stdout_dropped_bytes: Count
    stderr_dropped_bytes: Count


class _OpFailed(_Op, _Reason):
    pass


class _ExecTimedOut(_Op):
    timeout_s: float | None


class _FileWriteStarted(_OpBytes):
    path: str


class _TaskFilesCopied(_Data):
    key: str
    source: str
    target: str
    files: int
    bytes: int
    sha256: str


class _FileReadStarted(_Op):
    path: str


class _LimitHit(_Data):
    limit: str


class _ProbeStarted(_Data):
    which: str
    phase: str
    user: str


class _ProbeCompleted(_ProbeStarted, _Timed):
    verdict: Literal["contained", "void", "breached"]
    probes: Count
    digest: Hex64
    problem: str


class _Sample(_Data):
    sample: str


class _Difference(_Data):
    kind: str
    key: str
    detail: str


class _SampleStarted(_Sample):
    differences: Annotated[list[_Difference], Field(strict=False)] = []


class _Range(_Data):
    range: str


class _RangeOpened(_Range, _Timed):
    pass


class _RangeFailed(_Range, _Reason):
    error: str


class _RangeDestroying(_Range, _Reason):
    pass


class _RangeDestroyed(_Range, _Destroyed):
    pass


class _Seen(_Data):
    """What a part of a range saw of a cell: by the cell's name in the range, empty when no cell of it has the address."""

    cell: str


class _Judged(_Seen, _Reason):
    verdict: Literal["allowed", "refused", "dropped"]


class _NetworkFlow(_Judged):
    protocol: str
    address: str
    port: Count | None
    bytes: Count


class _NetworkDns(_Seen):
    name: str
    type: str
    answer: str
    longest_label: Count
    entropy: float
    header: str = ""
    edns: str = ""


class _NetworkTls(_Judged):
    sni: str | None
    address: str
    port: Count


class _NetworkHttp(_Judged):
    exchange: Count
    stand_in: str
    method: str
    url: str
    bytes: Count


class _NetworkHttpAnswered(_Seen, _Timed):
    exchange: Count
    stand_in: str
    status: Count
    bytes: Count


class _NetworkWebsocket(_Seen):
    exchange: Count
    stand_in: str
    direction: Literal["sent", "received"]
    bytes: Count


class _NetworkStream(_Judged):
    stand_in: str
    address: str
    port: Count
    bytes: Count


class _NetworkConnection(_Seen, _Reason):
    """The bytes that a cell sent on one TCP connection to the gateway, all of them."""

    connection: Count
    address: str
    port: Count
    source_port: Count
    phase: Literal["open", "closed"]
    received_bytes: Count
    recorded_bytes: Count
    framing_bytes: Count
    remainder_bytes: Count
    missing_bytes: Count
    unread_bytes: Count
    eof: bool
    accounted: bool


class _NetworkAttempt(_Data):
    stand_in: str
    what: str


class _NetworkUpstream(_Data):
    host: str
    port: Count | None
    address: str
    verdict: Literal["dialled", "refused", "failed", "cut"]
    reason: str
    problem: str


_DATA: Final[dict[Kind, type[_Data]]] = {
    Kind.RUN_STARTED: _RunStarted,
    Kind.RUN_EVALUATED: _RunEvaluated,
    Kind.RUN_FINISHED: _RunFinished,
    Kind.HOST_REAPED: _HostReaped,
    Kind.POLICY_REFUSED: _Reason,
    Kind.CELL_PLANNED: _CellPlanned,
    Kind.CELL_STARTING: _CellStarting,
    Kind.CELL_STARTED: _Timed,
    Kind.CELL_CLONING: _Data,
    Kind.CELL_CLONED: _Timed,
    Kind.CELL_RENEWED: _CellRenewed,
    Kind.CELL_TAKEN: _CellTaken,
    Kind.CELL_CHECKING: _CellChecking,
    Kind.CELL_CHECKED: _CellChecked,
    Kind.CELL_FAILED: _CellFailed,
    Kind.CELL_DESTROYING: _Reason,
    Kind.CELL_DESTROYED: _Destroyed,
    Kind.TEMPLATE_BUILDING: _Template,
    Kind.TEMPLATE_BUILT: _TemplateBuilt,
    Kind.TEMPLATE_REJECTED: _TemplateRejected,
    Kind.EXEC_STARTED: _ExecStarted,
    Kind.EXEC_OUTPUT: _ExecOutput,
    Kind.EXEC_INPUT: _OpBytes,
    Kind.EXEC_SIGNAL: _ExecSignal,
    Kind.EXEC_COMPLETED: _ExecCompleted,
    Kind.EXEC_FAILED: _OpFailed,
    Kind.EXEC_TIMED_OUT: _ExecTimedOut,
    Kind.FILE_WRITE_STARTED: _FileWriteStarted,
    Kind.FILE_WRITE_COMPLETED: _Op,
    Kind.FILE_WRITE_FAILED: _OpFailed,
    Kind.TASK_FILES_COPIED: _TaskFilesCopied,
    Kind.FILE_READ_STARTED: _FileReadStarted,
    Kind.FILE_READ_COMPLETED: _OpBytes,
    Kind.FILE_READ_FAILED: _OpFailed,
    Kind.LIMIT_HIT: _LimitHit,
    Kind.PROBE_STARTED: _ProbeStarted,
    Kind.PROBE_COMPLETED: _ProbeCompleted,
    Kind.PROTOCOL_VIOLATION: _Reason,
    Kind.SAMPLE_STARTED: _SampleStarted,
    Kind.SAMPLE_RUNNING: _Sample,
    Kind.SAMPLE_FINISHED: _Sample,
    Kind.RANGE_OPENING: _Range,
    Kind.RANGE_OPENED: _RangeOpened,
    Kind.RANGE_FAILED: _RangeFailed,
    Kind.RANGE_DESTROYING: _RangeDestroying,
    Kind.RANGE_DESTROYED: _RangeDestroyed,
    Kind.NETWORK_FLOW: _NetworkFlow,
    Kind.NETWORK_DNS: _NetworkDns,
    Kind.NETWORK_TLS: _NetworkTls,
    Kind.NETWORK_HTTP: _NetworkHttp,
    Kind.NETWORK_HTTP_ANSWERED: _NetworkHttpAnswered,
    Kind.NETWORK_WEBSOCKET: _NetworkWebsocket,
    Kind.NETWORK_STREAM: _NetworkStream,
    Kind.NETWORK_CONNECTION: _NetworkConnection,
    Kind.NETWORK_ATTEMPT: _NetworkAttempt,
    Kind.NETWORK_UPSTREAM: _NetworkUpstream,
}


def check_data(kind: Kind, data: dict[str, Any]) -> None:
    """Raises `ValueError` that names the first field of `data` that this kind doesn't allow."""
    try:
        _DATA[Kind(kind)].model_validate(data)
    except ValidationError as error:
        raise ValueError(f"data of {kind}: {first_error(error)}") from error


def first_error(error: ValidationError) -> str:
    """One line of pydantic's list: the field and what is wrong with it, without echoing the input."""
    detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in detail["loc"])
    return f"{field}: {detail['msg']}" if field else str(detail["msg"])
