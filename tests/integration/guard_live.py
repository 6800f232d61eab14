"""The guard's test cases carried out from inside cells; the run's record has what was found."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
from tests.guard_cases import Case, CaseOutcome, Step

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.network import Network
from belljar.signals.observe import model_part
from belljar.signals.values import Channel

STEP_TIMEOUT_S: Final = 120.0
HOST: Final = "svc.internal"  # of all requests, unless a case names another
MAIL_HOST: Final = "mail.internal"
CASE_FILE: Final = "/tmp/case"
METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]
NETWORK: Final[Mapping[str, Any]] = {
    "default": "simulate",
    "stand_ins": {
        "svc": {
            "kind": "http",
            "names": [HOST],
            "routes": [{"path": "/{rest...}", "methods": METHODS, "body": "ok\n"}],
        },
        "mail": {"kind": "smtp", "names": [MAIL_HOST]},
    },
}
# Where a case is found, by channel; all others are sent within the range.
_PLACES: Final = {Channel.FILE: "output", Channel.OUTPUT: "output", Channel.MODEL: "model"}
CLIENT: Final = r"""
import base64, http.client, json, re, smtplib, socket, struct, sys
step = json.load(sys.stdin)
data = base64.b64decode(step["data"])
HOST, MAIL = step["host"], step["mail"]
if step["channel"] == "http":
    path = re.sub(r"^https?://[^/]*", "", step["url"]) or "/"
    call = http.client.HTTPConnection(HOST, timeout=60)
    names = {name.lower() for name, _ in step["headers"]}
    head = [f"{step['method']} {path} HTTP/1.1".encode()]
    head += [] if "host" in names else [b"Host: " + HOST.encode()]
    head += [] if "content-length" in names or not data else [b"Content-Length: %d" % len(data)]
    head += [f"{name}: {value}".encode() for name, value in step["headers"]]
    call.connect()
    call.sock.sendall(b"\r\n".join(head) + b"\r\n\r\n" + data)
    call.sock.settimeout(60)
    print(call.sock.recv(12)[9:12].decode("latin-1"))
elif step["channel"] == "dns":
    server = re.search(r"(?m)^nameserver\s+(\S+)", open("/etc/resolv.conf").read()).group(1)
    for number, name in enumerate(step["names"]):
        labels = [label.encode() for label in name.rstrip(".").split(".")]
        asked = b"".join(bytes([len(label)]) + label for label in labels) + b"\0\0\1\0\1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
            wire.settimeout(20)
            wire.sendto(struct.pack(">6H", number, 256, 1, 0, 0, 0) + asked, (server, 53))
            wire.recv(4096)
    print("asked")
else:
    with smtplib.SMTP(MAIL, 25, timeout=60) as server:
        try:
            server.sendmail("a@svc.internal", ["b@svc.internal"], data)
            print(250)
        except smtplib.SMTPResponseException as error:
            print(error.smtp_code)
"""
"""The cell's own Python: one step, as JSON."""


async def carry_out(
    cases: Sequence[Case], loaded: LoadedPolicy, *, home: Path
) -> tuple[list[CaseOutcome], Path]:
    """Each case in a cell and a range of its own, one after the other."""
    update = {"network": Network.model_validate(NETWORK), "decoys": (), "files": ()}
    policy = replace(loaded, policy=loaded.policy.model_copy(update=update))
    outcomes = []
    with start_run("guard cases", None, [], home=home) as run:
        for case in cases:
            async with open_cell(policy, run=run, home=home) as cell:
                for step in case.steps:
                    await _take_step(cell, step)
            outcomes.append(_outcome(case, cell.id, run.path))
        run.finish("completed", exit_code=0)
    return outcomes, run.path


def _outcome(case: Case, cell_id: str, run: Path) -> CaseOutcome:
    lines = list(read_events(run))
    planned = [line for line in lines if line.kind is Kind.CELL_PLANNED and line.cell == cell_id]
    own = {cell_id, *(str(line.data.get("range")) for line in planned)}
    kinds, place = {Kind.GUARD_HIT, Kind.GUARD_UNSCANNED}, _PLACES.get(case.channel, "range")
    guarded = [line for line in lines if line.kind in kinds and line.data["place"] == place]
    seen = [line for line in guarded if str(line.cell or line.data.get("range")) in own]
    classes = (str(line.data["class"]) for line in seen if line.kind is Kind.GUARD_HIT)
    problems = (str(line.data["reason"]) for line in seen if line.kind is Kind.GUARD_UNSCANNED)
    return CaseOutcome(case=case, classes=tuple(dict.fromkeys(classes)), problem=next(problems, ""))


async def _take_step(cell: Cell, step: Step) -> None:
    if step.channel is Channel.MODEL:
        guard, part = cell.guard, model_part(step.data, "model.content")
        assert guard is not None
        await anyio.to_thread.run_sync(lambda: guard.let_out(part, cell_id=cell.id))
    elif step.channel is Channel.FILE:
        await cell.write_file(CASE_FILE, step.data)
        await cell.read_file(CASE_FILE, max_bytes=max(1, len(step.data)))
    elif step.channel is Channel.OUTPUT:
        await cell.write_file(CASE_FILE, step.data)
        await cell.exec(["cat", CASE_FILE], timeout_s=STEP_TIMEOUT_S)
    else:
        done = await cell.exec(
            ["python3", "-c", CLIENT], input=as_input(step), timeout_s=STEP_TIMEOUT_S
        )
        assert done.code == 0, done.stderr


def as_input(step: Step) -> bytes:
    """A step for `CLIENT`. Pure."""
    request = step.http
    message: dict[str, Any] = {
        "channel": step.channel.value,
        "host": HOST,
        "mail": MAIL_HOST,
        "names": step.names,
        "data": base64.b64encode(step.data if request is None else request.body).decode(),
    }
    if request is not None:
        message |= {"method": request.method, "url": request.url, "headers": request.headers}
    return json.dumps(message).encode()
