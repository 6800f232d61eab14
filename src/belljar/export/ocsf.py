"""Events in the Open Cybersecurity Schema Framework 1.5.0 (schema.ocsf.io).

Events that have no class there (probes, plans, proofs) are left out.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.package import __version__
from belljar.report.timeline import place_of
from belljar.units import printable

# OCSF's version, which each event names.
SCHEMA: Final = "1.5.0"
_FILE, _PROCESS, _FINDING, _NETWORK, _HTTP, _DNS = 1001, 1007, 2004, 4001, 4002, 4003
# A virtual machine is OCSF's device type 6; a container is one to whoever reads an alert.
_DEVICE_TYPE: Final = 6
# In the order of `http_activity`'s activity_id.
_METHODS: Final = ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE")
# OCSF's number of what it has no word for.
_OTHER: Final = 99


def ocsf(lines: Iterable[Line], run_id: str) -> Iterator[dict[str, Any]]:
    begun: dict[tuple[str, object], Line] = {}
    for line in lines:
        # No kind's own in a range's event: it may have any shape
        number = line.data.get("exchange", line.data.get("op"))
        key = (place_of(line), number if isinstance(number, int) else None)
        if line.kind in (Kind.EXEC_STARTED, Kind.FILE_READ_STARTED, Kind.NETWORK_HTTP):
            begun[key] = line
        make = _CLASSES.get(line.kind)
        if make and (made := make(line, begun.get(key, line))) is not None:
            yield {**_base(line, run_id, made["class_uid"], made["activity_id"]), **made}


def _base(line: Line, run_id: str, class_uid: int, activity_id: int) -> dict[str, Any]:
    place = place_of(line, run_id)
    return {
        "activity_id": activity_id,
        "category_uid": class_uid // 1000,
        "class_uid": class_uid,
        "type_uid": class_uid * 100 + activity_id,
        "severity_id": 1 if class_uid != _FINDING else 5 if line.kind in _BREACHES else 4,
        "time": int(datetime.fromisoformat(line.time).timestamp() * 1e3),
        "metadata": {
            "version": SCHEMA,
            "product": {"name": "Belljar", "vendor_name": "Belljar", "version": __version__},
            "uid": f"{run_id}/{line.seq}",
            "correlation_uid": run_id,
            "event_code": line.kind.value,
        },
        "device": {"type_id": _DEVICE_TYPE, "uid": place, "hostname": place},
        "actor": {"app_name": line.actor.value},
        "unmapped": {"trust": line.trust.value, **line.data},
    }


def _process(line: Line, first: Line) -> dict[str, Any]:
    argv = [str(word) for word in first.data.get("argv", ())]
    ends = line.kind is not Kind.EXEC_STARTED
    return {
        "class_uid": _PROCESS,
        "activity_id": 2 if ends else 1,
        "process": {
            "uid": f"{line.cell}/{line.data['op']}",
            "name": argv[0] if argv else "",
            "cmd_line": " ".join(argv),
            "user": {"name": str(first.data.get("user", ""))},
        },
        **({"exit_code": int(line.data.get("code", -1))} if ends else {}),
    }


def _file(line: Line, first: Line) -> dict[str, Any]:
    path = str(first.data.get("path", ""))
    return {
        "class_uid": _FILE,
        "activity_id": 2 if line.kind is Kind.FILE_READ_COMPLETED else 3,
        "file": {"name": path.rsplit("/", 1)[-1] or "/", "path": path, "type_id": 1},
    }


def _network(line: Line, _first: Line) -> dict[str, Any]:
    data = line.data
    # A look-up that left, and a connection that was cut later, were let through
    is_allowed = data.get("verdict") in ("allowed", "dialled", "looked_up", "cut")
    return {
        "class_uid": _NETWORK,
        "activity_id": 1 if is_allowed else 5,
        "disposition_id": 1 if is_allowed else 2,
        "src_endpoint": {"name": str(data.get("cell") or data.get("source") or "")},
        "dst_endpoint": _endpoint(data),
        "connection_info": {"direction_id": 2, "protocol_name": str(data.get("protocol", "tcp"))},
    }


def _endpoint(data: Mapping[str, Any]) -> dict[str, Any]:
    address = str(data.get("address") or "")
    named = {"hostname": str(data.get("host") or data.get("name") or address or "unknown")}
    with suppress(ValueError):
        named = {"ip": str(ipaddress.ip_address(address))}
    return {**named, **({"port": data["port"]} if isinstance(data.get("port"), int) else {})}


def _http(line: Line, first: Line) -> dict[str, Any]:
    method = str(first.data.get("method", ""))
    made: dict[str, Any] = {"disposition_id": 1 if line.data.get("verdict") == "allowed" else 2}
    if line.kind is Kind.NETWORK_HTTP_ANSWERED:
        made = {"http_response": {"code": line.data["status"], "length": line.data["bytes"]}}
    return {
        "class_uid": _HTTP,
        "activity_id": _METHODS.index(method) + 1 if method in _METHODS else _OTHER,
        "http_request": {
            "http_method": method,
            "url": {"url_string": str(first.data.get("url", ""))},
            "length": int(first.data.get("bytes", 0)),
        },
        "src_endpoint": {"name": str(line.data.get("cell", ""))},
        "dst_endpoint": {"hostname": str(line.data.get("stand_in", ""))},
        **made,
    }


def _dns(line: Line, _first: Line) -> dict[str, Any]:
    return {
        "class_uid": _DNS,
        "activity_id": 6,
        "query": {"hostname": line.data["name"], "type": line.data["type"]},
        "answers": [{"rdata": line.data["answer"], "type": line.data["type"]}],
        "src_endpoint": {"name": str(line.data.get("cell", ""))},
    }


def _finding(line: Line, _first: Line) -> dict[str, Any] | None:
    data = line.data
    is_clean = data.get("verdict") == "contained" or data.get("clean") or data.get("found") == []
    if line.kind in _BREACHES and is_clean:
        return None
    what = [str(data[name]) for name in ("class", "decoy", "rule", "reason") if name in data]
    return {
        "class_uid": _FINDING,
        "activity_id": 1,
        "finding_info": {
            "title": f"{line.kind.value}: {what[0] if what else ''}",
            "uid": f"{line.seq}",
            "types": [line.kind.value],
        },
        "is_alert": True,
    }


# Only as far as they found something.
_BREACHES: Final = (
    *(Kind.PROBE_COMPLETED, Kind.CELL_REVERT_VERIFIED, Kind.CELL_DESTROYED),
    *(Kind.RANGE_DESTROYED, Kind.AIR_GAP_CHANGED, Kind.DECOY_CARRIED),
)
_Make = Callable[[Line, Line], dict[str, Any] | None]
_MADE_FROM: Final[Mapping[_Make, Sequence[Kind]]] = {
    _process: (Kind.EXEC_STARTED, Kind.EXEC_COMPLETED, Kind.EXEC_FAILED, Kind.EXEC_TIMED_OUT),
    _file: (Kind.FILE_READ_COMPLETED, Kind.FILE_WRITE_STARTED),
    _network: (Kind.NETWORK_FLOW, Kind.NETWORK_STREAM, Kind.NETWORK_UPSTREAM),
    _http: (Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED),
    _dns: (Kind.NETWORK_DNS,),
    _finding: (
        *(Kind.GUARD_HIT, Kind.DECOY_TOUCHED, Kind.DECOY_TAKEN, Kind.DECOY_USED, Kind.DECOY_SENT),
        *(Kind.PROTOCOL_VIOLATION, Kind.KILL_TRIGGERED, *_BREACHES),
    ),
}
_CLASSES: Final = {kind: make for make, kinds in _MADE_FROM.items() for kind in kinds}


# --- Timesketch


def timesketch(lines: Iterable[Line], run_id: str) -> Iterator[dict[str, Any]]:
    """Yield each event, flat for the importer, with `data_` fields."""
    for line in lines:
        words = [f"{name}={_text(value)}" for name, value in line.data.items()]
        yield {
            "datetime": line.time,
            "timestamp": int(datetime.fromisoformat(line.time).timestamp() * 1e6),
            "timestamp_desc": line.kind.value,
            "message": printable(" ".join((line.cell or run_id, line.kind.value, *words))),
            "run": run_id,
            "seq": line.seq,
            "cell": line.cell or "",
            "actor": line.actor.value,
            "trust": line.trust.value,
            **{f"data_{name}": _text(value) for name, value in line.data.items()},
        }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
