"""The shape of each event kind's data (docs/events.md), and the checks that shapes are made of.

A check raises `ValueError` without showing the value. Data may carry more fields than are known
here. Not pydantic, whose import would take a third of a short command's time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass
from belljar.events import Kind

Check: TypeAlias = Callable[[Any], object]
MAX_COUNT: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Optional:
    """A field that may be missing."""

    check: Check


Shape: TypeAlias = Mapping[str, Check | Optional]


def check_shape(value: Any, shape: Shape, *, extra: bool = False) -> None:  # noqa: ANN401
    """Check an object; `extra`: more fields are allowed. Raises `ValueError`."""
    if not isinstance(value, dict):
        raise ValueError("an object is needed")
    for name, rule in shape.items():
        check = rule.check if isinstance(rule, Optional) else rule
        if name not in value:
            if check is rule:
                raise ValueError(f"{name}: is missing")
            continue
        try:
            check(value[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if not extra and not value.keys() <= shape.keys():
        raise ValueError("it has fields that are not known")


def _of_type(what: str, *types: type) -> Check:
    """A value of these types; true is no number."""

    def check(value: object) -> None:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"{what} is needed")

    return check


text: Final = _of_type("text", str)
flag: Final = _of_type("true or false", bool)
whole: Final = _of_type("a whole number", int)
number: Final = _of_type("a number", int, float)
json_object: Final = _of_type("an object", dict)


def count(value: object) -> None:
    """From 0 to what JSON carries exactly."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ValueError("a whole number from 0 to 2^53 - 1 is needed")


def one_of(*words: str) -> Check:
    """One of these words."""
    allowed = frozenset(words)

    def check(value: object) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError("not a word that is known here")

    return check


def exactly(number: int) -> Check:
    """This whole number; true is not 1."""

    def check(value: object) -> None:
        if type(value) is not int or value != number:
            raise ValueError(f"{number} is needed")

    return check


def matching(pattern: str) -> Check:
    """Text that this pattern matches whole."""
    compiled = re.compile(pattern)

    def check(value: object) -> None:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise ValueError("not of its form")

    return check


HEX64: Final = matching("[0-9a-f]{64}")
RUN_ID: Final = matching("[0-9A-Za-z][0-9A-Za-z.-]{0,63}")


def maybe(check: Check) -> Check:
    """As `check`, or null."""

    def check_unless_null(value: object) -> None:
        if value is not None:
            check(value)

    return check_unless_null


def items(check: Check, *, min_items: int = 0, max_items: int | None = None) -> Check:
    """A list (in an event also a tuple) of such items."""

    def check_items(value: object) -> None:
        if not isinstance(value, list | tuple):
            raise ValueError("a list is needed")
        if max_items is not None and len(value) > max_items:
            raise ValueError(f"at most {max_items} items are allowed")
        if len(value) < min_items:
            raise ValueError(f"at least {min_items} items are needed")
        for index, item in enumerate(value):
            try:
                check(item)
            except ValueError as error:
                raise ValueError(f"{index}: {error}") from None

    return check_items


def objects(shape: Shape, *, max_items: int | None = None, extra: bool = False) -> Check:
    """A list of objects of this shape."""
    return items(lambda value: check_shape(value, shape, extra=extra), max_items=max_items)


texts: Final[Check] = items(text)


_OP: Final[Shape] = {"op": count}
_REASON: Final[Shape] = {"reason": text}
_REQUEST: Final[Shape] = {"request": count, "path": text, "bytes": count, "sha256": HEX64}
_TIMED: Final[Shape] = {"duration_ms": number}
_CELL_CHECKING: Final[Shape] = {"phase": one_of("baseline", "call", "end")}
_DESTROYED: Final[Shape] = {
    **_TIMED,
    "clean": flag,
    "survivors": texts,
    "checked": Optional(texts),
    "not_checked": Optional(texts),
}
_TEMPLATE: Final[Shape] = {"key": text}
# Of a stream: milliseconds since the start, and how many bytes there were by then.
_TIMES: Final[Shape] = {
    f"{name}_times": Optional(items(items(count, min_items=2, max_items=2)))
    for name in ("stdin", "stdout", "stderr")
}
_OP_BYTES: Final[Shape] = {**_OP, "bytes": count}
_OP_FAILED: Final[Shape] = {**_OP, **_REASON}
_FILES: Final[Shape] = {**_OP, "action": one_of("upload", "download", "list", "stat", "remove")}
_PROBE_STARTED: Final[Shape] = {"which": text, "phase": text, "user": text}
_SAMPLE: Final[Shape] = {"sample": text}
_RANGE: Final[Shape] = {"range": text}
# The cell's name in its range; empty when no cell has the address.
_SEEN: Final[Shape] = {"cell": text}
_JUDGED: Final[Shape] = {**_SEEN, **_REASON, "verdict": one_of("allowed", "refused", "dropped")}
_DECOY: Final[Shape] = {"decoy": text}
_DECOY_CONTACT: Final[Shape] = {**_DECOY, "value": text, "operation": text, "evidence": count}
_SENSOR: Final[Shape] = {"sensor": text, "decoys": texts}
_GUARD_PLACE: Final[Shape] = {
    "place": one_of("range", "upstream", "output", "model"),
    "channel": text,
    "evidence": Optional(count),
}
_UNIT: Final[Shape] = {"unit": count, "attempt": count, "node": text, "samples": texts}
_KILL_SCOPE: Final[Shape] = {"scope": one_of("sample", "run", "all", "cells")}
DATA: Final[Mapping[Kind, Shape]] = {
    Kind.RUN_STARTED: {
        "run_id": RUN_ID,
        "kind": text,
        "argv": texts,
        "key": HEX64,
        "belljar": text,
        "libraries": Optional(json_object),
    },
    Kind.RUN_EVALUATED: {"interrupted": flag, "stopped": flag, "errors": texts},
    Kind.RUN_FINISHED: {
        "outcome": one_of("completed", "failed", "interrupted"),
        "exit_code": maybe(whole),
    },
    Kind.HOST_REAPED: {
        "count": count,
        "cells": objects(
            {"cell_id": text, "kind": text, "removed": texts, "remaining": texts}, extra=True
        ),
    },
    Kind.AIR_GAP_CHECKED: {
        "phase": one_of("start", "end"),
        "air_gapped": flag,
        "findings": objects({"name": text, "state": text, "how": text, "evidence": text}),
    },
    Kind.AIR_GAP_CHANGED: _REASON,
    Kind.POLICY_REFUSED: _REASON,
    Kind.CELL_PLANNED: {"policy_sha256": text, "tier": text, "emulated": flag, "layers": texts},
    Kind.CELL_STARTING: {"runtime": text, "tree": text},
    Kind.CELL_STARTED: _TIMED,
    Kind.CELL_CLONING: {},
    Kind.CELL_CLONED: _TIMED,
    Kind.CELL_RENEWED: {"done": texts},
    Kind.CELL_TAKEN: {"waited_ms": number, "age_ms": number},
    Kind.CELL_REVERTING: {"verify": flag},
    Kind.CELL_REVERTED: {"from": text, "to": text, "from_pool": flag, **_TIMED},
    Kind.CELL_REVERT_VERIFIED: {
        "from": text,
        "planted": texts,
        "found": texts,
        "not_checked": texts,
    },
    Kind.CELL_SNAPSHOTTING: {"snapshot": text, "name": text},
    Kind.CELL_SNAPSHOT: {
        **dict.fromkeys(("snapshot", "name", "key"), text),
        "state": one_of("machine", "files"),
        "digest": HEX64,
        "bytes": count,
        **_TIMED,
    },
    Kind.CELL_FORKED: {"snapshot": text, "from": text, "kept_decoys": Optional(texts)},
    Kind.SNAPSHOT_DELETED: {"snapshot": text, "clean": flag},
    Kind.CELL_CHECKING: _CELL_CHECKING,
    Kind.CELL_CHECKED: {**_CELL_CHECKING, **_TIMED, **_OP, "cause": text},
    Kind.CELL_FAILED: {**_REASON, "error": text},
    Kind.CELL_DESTROYING: _REASON,
    Kind.CELL_DESTROYED: _DESTROYED,
    Kind.TEMPLATE_BUILDING: _TEMPLATE,
    Kind.TEMPLATE_BUILT: {**_TEMPLATE, **_TIMED},
    Kind.TEMPLATE_REJECTED: {**_TEMPLATE, **_REASON},
    Kind.EXEC_STARTED: {
        **_OP,
        "argv": texts,
        "cwd": text,
        "user": text,
        "env_names": texts,
        "stdin": flag,
        "timeout_s": maybe(number),
    },
    Kind.EXEC_OUTPUT: {**_OP, "stream": one_of("stdout", "stderr"), "bytes": count},
    Kind.EXEC_INPUT: _OP_BYTES,
    Kind.EXEC_SIGNAL: {**_OP, "signal": text, "scope": one_of("main", "tree")},
    Kind.EXEC_COMPLETED: {
        **_OP,
        **_TIMES,
        **_TIMED,
        "status": one_of("exited", "signalled"),
        "code": whole,
        "stdout_bytes": count,
        "stderr_bytes": count,
        "stdout_dropped_bytes": count,
        "stderr_dropped_bytes": count,
    },
    Kind.EXEC_FAILED: _OP_FAILED,
    Kind.EXEC_TIMED_OUT: {**_OP, **_TIMES, "timeout_s": maybe(number)},
    Kind.CONNECT_STARTED: {**_OP, "target": one_of("tcp", "unix"), "name": text, "user": text},
    Kind.CONNECT_COMPLETED: {
        **_OP,
        "sent_bytes": count,
        "received_bytes": count,
        "unread_bytes": count,
    },
    Kind.CONNECT_FAILED: _OP_FAILED,
    Kind.MODEL_REQUEST_STARTED: _REQUEST,
    Kind.MODEL_REQUEST_COMPLETED: {
        **_REQUEST,
        **_TIMED,
        "status": count,
        "prompt_tokens": maybe(count),
        "completion_tokens": maybe(count),
    },
    Kind.MODEL_REQUEST_FAILED: {**_REQUEST, **_REASON, "status": count},
    Kind.FILE_WRITE_STARTED: {**_OP_BYTES, "path": text},
    Kind.FILE_WRITE_COMPLETED: _OP,
    Kind.FILE_WRITE_FAILED: _OP_FAILED,
    Kind.TASK_FILES_COPIED: {
        "key": text,
        "source": text,
        "target": text,
        "files": whole,
        "bytes": whole,
        "sha256": text,
    },
    Kind.FILE_READ_STARTED: {**_OP, "path": text},
    Kind.FILE_READ_COMPLETED: _OP_BYTES,
    Kind.FILE_READ_FAILED: _OP_FAILED,
    Kind.FILES_STARTED: {**_FILES, "path": text},
    Kind.FILES_COMPLETED: {**_FILES, "entries": count},
    Kind.FILES_FAILED: {**_FILES, **_REASON},
    Kind.CELL_METRICS: {
        **_OP,
        "cpu_s": maybe(number),
        "memory_bytes": maybe(count),
        "memory_limit_bytes": count,
        "disk_bytes": maybe(count),
        "disk_limit_bytes": count,
        "processes": maybe(count),
        "processes_limit": count,
        "uptime_s": number,
        "guest_reported": texts,
    },
    Kind.LIMIT_HIT: {"limit": text},
    Kind.PROBE_STARTED: _PROBE_STARTED,
    Kind.PROBE_COMPLETED: {
        **_PROBE_STARTED,
        **_TIMED,
        "verdict": one_of("contained", "void", "breached"),
        "probes": count,
        "digest": HEX64,
        "problem": text,
    },
    Kind.PROTOCOL_VIOLATION: _REASON,
    Kind.SAMPLE_STARTED: {
        **_SAMPLE,
        "differences": Optional(objects({"kind": text, "key": text, "detail": text}, extra=True)),
    },
    Kind.SAMPLE_RUNNING: _SAMPLE,
    Kind.SAMPLE_FINISHED: _SAMPLE,
    Kind.MODEL_CALLED: {"model": text, "address": text, "bytes": count, "guarded": flag},
    Kind.RANGE_OPENING: _RANGE,
    Kind.RANGE_OPENED: {**_RANGE, **_TIMED},
    Kind.RANGE_FAILED: {**_RANGE, **_REASON, "error": text},
    Kind.RANGE_DESTROYING: {**_RANGE, **_REASON},
    Kind.RANGE_DESTROYED: {**_RANGE, **_DESTROYED, "sent_bytes": Optional(json_object)},
    Kind.NETWORK_FLOW: {
        **_JUDGED,
        "protocol": text,
        "address": text,
        "port": maybe(count),
        "bytes": count,
    },
    Kind.NETWORK_DNS: {
        **_SEEN,
        "name": text,
        "type": text,
        "answer": text,
        "longest_label": count,
        "entropy": number,
        "header": Optional(text),
        "edns": Optional(text),
    },
    Kind.NETWORK_TLS: {**_JUDGED, "sni": maybe(text), "address": text, "port": count},
    Kind.NETWORK_HTTP: {
        **_JUDGED,
        "exchange": count,
        "stand_in": text,
        "method": text,
        "url": text,
        "bytes": count,
    },
    Kind.NETWORK_HTTP_ANSWERED: {
        **_SEEN,
        **_TIMED,
        "exchange": count,
        "stand_in": text,
        "status": count,
        "bytes": count,
    },
    Kind.NETWORK_WEBSOCKET: {
        **_SEEN,
        "exchange": count,
        "stand_in": text,
        "direction": one_of("sent", "received"),
        "bytes": count,
    },
    Kind.NETWORK_STREAM: {
        **_JUDGED,
        "stand_in": text,
        "address": text,
        "port": count,
        "bytes": count,
    },
    # One TCP connection of a cell to the gateway. Older runs have sums of its bytes, too.
    Kind.NETWORK_CONNECTION: {
        **_SEEN,
        **_REASON,
        "connection": count,
        "address": text,
        "port": count,
        "source_port": count,
        "phase": one_of("open", "closed"),
        "received_bytes": count,
        "eof": flag,
    },
    Kind.NETWORK_ATTEMPT: {"stand_in": text, "what": text},
    Kind.NETWORK_UPSTREAM: {
        "host": text,
        "port": maybe(count),
        "address": text,
        "verdict": one_of("looked_up", "dialled", "refused", "failed", "cut"),
        "reason": text,
        "problem": text,
    },
    Kind.DECOY_PLACED: {**_DECOY, "kind": text, "place": text, "values": json_object},
    Kind.DECOY_FAILED: {**_DECOY, **_REASON, "kind": text, "place": text},
    Kind.DECOY_TOUCHED: {**_DECOY, "operation": one_of("open", "read", "connect")},
    Kind.DECOY_TAKEN: _DECOY_CONTACT,
    Kind.DECOY_USED: _DECOY_CONTACT,
    Kind.DECOY_SENT: _DECOY_CONTACT,
    Kind.DECOY_CARRIED: {
        **_DECOY,
        "value": text,
        "from_cell": text,
        "evidence": count,
        "lineage": Optional(one_of("taken", "used", "sent")),
    },
    Kind.SENSOR_STARTED: _SENSOR,
    Kind.SENSOR_FAILED: {**_SENSOR, **_REASON},
    Kind.GUARD_HIT: {
        **_GUARD_PLACE,
        "class": text,
        "action": one_of("flag", "redact", "block", "stop"),
        "digest": HEX64,
        "start": count,
        "end": count,
        "decoding": texts,
        "value": Optional(text),
    },
    Kind.GUARD_UNSCANNED: {**_GUARD_PLACE, **_REASON, "bytes": count},
    Kind.KILL_TRIGGERED: {**_KILL_SCOPE, **_REASON, "rule": text, "evidence": Optional(count)},
    Kind.KILL_COMPLETED: {**_KILL_SCOPE, **_TIMED, "cells": texts, "failed": texts},
    Kind.KILL_TESTED: {**_TIMED, "ok": flag},
    Kind.FLEET_PLANNED: {"task": text, "samples": texts, "epochs": count, "code": HEX64},
    Kind.FLEET_NODE: {
        "node": text,
        "state": one_of("taken", "refused", "lost"),
        "key": text,
        **_REASON,
    },
    Kind.FLEET_UNIT_PLACED: _UNIT,
    Kind.FLEET_UNIT_FINISHED: {
        **_UNIT,
        "run_id": RUN_ID,
        "key": HEX64,
        "root": HEX64,
        "archive": HEX64,
        "bytes": count,
        "verdict": one_of("contained", "void", "breached"),
    },
    Kind.FLEET_UNIT_FAILED: {
        **_UNIT,
        **_REASON,
        "archive": Optional(HEX64),
        "is_bad": Optional(flag),
    },
    Kind.CONTROL_PLANNED: {"controls": texts, "policies": texts},
    Kind.CONTROL_STARTED: {"control": text},
    Kind.CONTROL_COMPLETED: {"control": text, "ok": flag, "missing": texts, "unexpected": texts},
}
