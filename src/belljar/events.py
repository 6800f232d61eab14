"""Events: what every room hands to the recorder it was given.

An interaction is *recorded, then done*: `….started` before the effect, the outcome after it.
`docs/events.md` documents each kind's `data`.
Integers beyond 2^53 and bytes are strings in it (RFC 8785, section 3.2.2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias

from belljar.dataclass import dataclass, field

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)


class Kind(StrEnum):
    RUN_STARTED = "run.started"
    RUN_EVALUATED = "run.evaluated"
    RUN_FINISHED = "run.finished"
    HOST_REAPED = "host.reaped"
    AIR_GAP_CHECKED = "air_gap.checked"
    AIR_GAP_CHANGED = "air_gap.changed"
    POLICY_REFUSED = "policy.refused"
    CELL_PLANNED = "cell.planned"
    CELL_STARTING = "cell.starting"
    CELL_STARTED = "cell.started"
    CELL_CLONING = "cell.cloning"
    CELL_CLONED = "cell.cloned"
    CELL_RENEWED = "cell.renewed"
    CELL_TAKEN = "cell.taken"
    CELL_REVERTING = "cell.reverting"
    CELL_REVERTED = "cell.reverted"
    CELL_REVERT_VERIFIED = "cell.revert_verified"
    CELL_SNAPSHOTTING = "cell.snapshotting"
    CELL_SNAPSHOT = "cell.snapshot"
    CELL_FORKED = "cell.forked"
    SNAPSHOT_DELETED = "snapshot.deleted"
    CELL_CHECKING = "cell.checking"
    CELL_CHECKED = "cell.checked"
    CELL_FAILED = "cell.failed"
    CELL_DESTROYING = "cell.destroying"
    CELL_DESTROYED = "cell.destroyed"
    TEMPLATE_BUILDING = "template.building"
    TEMPLATE_BUILT = "template.built"
    TEMPLATE_REJECTED = "template.rejected"
    EXEC_STARTED = "exec.started"
    EXEC_OUTPUT = "exec.output"
    EXEC_INPUT = "exec.input"
    EXEC_SIGNAL = "exec.signal"
    EXEC_COMPLETED = "exec.completed"
    EXEC_FAILED = "exec.failed"
    EXEC_TIMED_OUT = "exec.timed_out"
    CONNECT_STARTED = "connect.started"
    CONNECT_COMPLETED = "connect.completed"
    CONNECT_FAILED = "connect.failed"
    MODEL_REQUEST_STARTED = "model.request.started"
    MODEL_REQUEST_COMPLETED = "model.request.completed"
    MODEL_REQUEST_FAILED = "model.request.failed"
    FILE_WRITE_STARTED = "file.write.started"
    FILE_WRITE_COMPLETED = "file.write.completed"
    FILE_WRITE_FAILED = "file.write.failed"
    TASK_FILES_COPIED = "task.files.copied"
    FILE_READ_STARTED = "file.read.started"
    FILE_READ_COMPLETED = "file.read.completed"
    FILE_READ_FAILED = "file.read.failed"
    FILES_STARTED = "files.started"
    FILES_COMPLETED = "files.completed"
    FILES_FAILED = "files.failed"
    CELL_METRICS = "cell.metrics"
    LIMIT_HIT = "limit.hit"
    PROTOCOL_VIOLATION = "protocol.violation"
    PROBE_STARTED = "probe.started"
    PROBE_COMPLETED = "probe.completed"
    SAMPLE_STARTED = "sample.started"
    SAMPLE_RUNNING = "sample.running"
    SAMPLE_FINISHED = "sample.finished"
    MODEL_CALLED = "model.called"
    RANGE_OPENING = "range.opening"
    RANGE_OPENED = "range.opened"
    RANGE_FAILED = "range.failed"
    RANGE_DESTROYING = "range.destroying"
    RANGE_DESTROYED = "range.destroyed"
    NETWORK_FLOW = "network.flow"
    NETWORK_DNS = "network.dns"
    NETWORK_TLS = "network.tls"
    NETWORK_HTTP = "network.http"
    NETWORK_HTTP_ANSWERED = "network.http.answered"
    NETWORK_WEBSOCKET = "network.websocket"
    NETWORK_STREAM = "network.stream"
    NETWORK_CONNECTION = "network.connection"
    NETWORK_ATTEMPT = "network.attempt"
    NETWORK_UPSTREAM = "network.upstream"
    DECOY_PLACED = "decoy.placed"
    DECOY_FAILED = "decoy.failed"
    DECOY_TOUCHED = "decoy.touched"
    DECOY_TAKEN = "decoy.taken"
    DECOY_USED = "decoy.used"
    DECOY_SENT = "decoy.sent"
    DECOY_CARRIED = "decoy.carried"
    SENSOR_STARTED = "sensor.started"
    SENSOR_FAILED = "sensor.failed"
    GUARD_HIT = "guard.hit"
    GUARD_UNSCANNED = "guard.unscanned"
    KILL_TRIGGERED = "kill.triggered"
    KILL_COMPLETED = "kill.completed"
    KILL_TESTED = "kill.tested"
    FLEET_PLANNED = "fleet.planned"
    FLEET_NODE = "fleet.node"
    FLEET_IMAGE_SENT = "fleet.image.sent"
    FLEET_UNIT_PLACED = "fleet.unit.placed"
    FLEET_UNIT_FINISHED = "fleet.unit.finished"
    FLEET_UNIT_FAILED = "fleet.unit.failed"
    # Not written any more; ledgers of earlier versions have them.
    CONTROL_PLANNED = "control.planned"
    CONTROL_STARTED = "control.started"
    CONTROL_COMPLETED = "control.completed"


class Actor(StrEnum):
    BELLJAR = "belljar"
    OPERATOR = "operator"
    HARNESS = "harness"
    GUEST = "guest"


class Trust(StrEnum):
    HOST_OBSERVED = "host-observed"
    GUEST_REPORTED = "guest-reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Bytes that belong to an event and are stored once, by digest, beside the ledger.

    `content` is what is kept (already bounded by the caller); `total_bytes` is what there was,
    `sha256` is of all of it when the host saw all of it.
    """

    name: str
    content: bytes
    total_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    kind: Kind
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    cell_id: str | None = None
    actor: Actor = Actor.BELLJAR
    trust: Trust = Trust.HOST_OBSERVED
    bodies: tuple[Body, ...] = ()


class Recorder(Protocol):
    def record(self, event: Event) -> int:
        """Record the event and return its sequence number.

        When this returns, the event survives this process's SIGKILL. Raises when it can't: then
        nothing may run.
        """
        ...
