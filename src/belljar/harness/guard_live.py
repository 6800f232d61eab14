"""Guard test cases run in cells; the record judges."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from belljar.errors import CellError, HostError
from belljar.events import Kind
from belljar.harness.controls import unarmed
from belljar.ledger import Line, read_events
from belljar.signals.cases import Case, Outcome, Step
from belljar.signals.observe import model_part
from belljar.signals.values import Channel
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell import Cell
    from belljar.ledger import RunDirectory
    from belljar.policy import LoadedPolicy

Opening = Callable[["LoadedPolicy"], AbstractAsyncContextManager["Cell"]]
AT_ONCE: Final = 2
STEP_TIMEOUT_S: Final = 120.0
HOST: Final = "svc.internal"
"""All requests' host, unless a case names another."""
MAIL_HOST: Final = "mail.internal"
CASE_FILE: Final = "/tmp/case"  # noqa: S108 - in the cell
NETWORK: Final[Mapping[str, Any]] = {
    "default": "simulate",
    "stand_ins": {
        "svc": {
            "kind": "http",
            "names": [HOST],
            "routes": [
                {"path": "/socket", "websocket": "echo"},
                {
                    "path": "/{rest...}",
                    "methods": ["GET", "POST", "PUT", "PATCH", "DELETE"],
                    "body": "ok\n",
                },
            ],
        },
        "mail": {"kind": "smtp", "names": [MAIL_HOST]},
    },
}
# Where a case is found, by channel; all others are sent within the range.
_PLACES: Final = {Channel.FILE: "output", Channel.OUTPUT: "output", Channel.MODEL: "model"}
CLIENT: Final = r"""
import base64, http.client, json, os, re, smtplib, socket, struct, sys
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
elif step["channel"] == "websocket":
    wire = socket.create_connection((HOST, 80), 60)
    key = base64.b64encode(os.urandom(16)).decode()
    wire.sendall((f"GET /socket HTTP/1.1\r\nHost: {HOST}\r\n"
                  "Upgrade: websocket\r\nConnection: Upgrade\r\n"
                  f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += wire.recv(4096) or sys.exit("no WebSocket")
    if b" 101 " not in answer.split(b"\r\n")[0]:
        sys.exit("no WebSocket")
    for kind, text in step["messages"]:
        message, mask = base64.b64decode(text), os.urandom(4)
        size = len(message)
        length = bytes([128 | size]) if size < 126 else (
            struct.pack(">BH", 254, size) if size < 65536 else struct.pack(">BQ", 255, size))
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(message))
        wire.sendall(bytes([128 | kind]) + length + mask + masked)
        left = len(length) + 1 + size  # the echo, which has no mask
        while left:
            left -= len(wire.recv(left)) or sys.exit("the WebSocket was closed")
    wire.sendall(b"\x88\x80" + os.urandom(4))
    print("sent")
else:
    with smtplib.SMTP(MAIL, 25, timeout=60) as server:
        try:
            server.sendmail("a@svc.internal", ["b@svc.internal"], data)
            print(250)
        except smtplib.SMTPResponseException as error:
            print(error.smtp_code)
"""
"""The cell's own Python: one step, as JSON."""


def live_policy(loaded: LoadedPolicy) -> LoadedPolicy:
    """The policy with a network that accepts anything. Pure."""
    from belljar.policy.load import parse_policy
    from belljar.policy.network import Network

    if not hasattr(loaded.policy, "model_copy"):  # a preset
        loaded = parse_policy(loaded.text, source=loaded.source, base=loaded.base)
    update = {"network": Network.model_validate(NETWORK), "decoys": (), "files": ()}
    return replace(loaded, policy=unarmed(loaded).policy.model_copy(update=update))


async def carry_out(
    cases: Sequence[Case],
    loaded: LoadedPolicy,
    *,
    run: RunDirectory,
    opening: Opening,
    on_progress: Callable[[int], object],
) -> tuple[Outcome, ...]:
    """Run each case in its own cell, `AT_ONCE` at a time.

    `on_progress` gets the count; a case that fails has a `problem`. Raises as `open_cell`, and
    `HostError` without Python.
    """
    policy, limiter = live_policy(loaded), anyio.CapacityLimiter(AT_ONCE)
    of_cell: dict[str, Case] = {}
    problems: dict[str, str] = {}
    done = 0

    async def one(case: Case) -> None:
        nonlocal done
        async with limiter, opening(policy) as cell:
            of_cell[cell.id] = case
            try:
                for step in case.steps:
                    await _take_step(cell, step)
            except HostError:
                raise
            except (CellError, OSError, TimeoutError) as error:
                problems[case.id] = printable(str(error), max_chars=300)
        done += 1
        on_progress(done)

    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(one, case)
    found = found_by_case(read_events(run.path), of_cell)
    return tuple(
        Outcome(
            case=case, classes=found[case.id][0], problem=problems.get(case.id) or found[case.id][1]
        )
        for case in cases
    )


def found_by_case(
    lines: Iterable[Line], of_cell: Mapping[str, Case]
) -> dict[str, tuple[tuple[str, ...], str]]:
    """Each case's classes and scan problem. Pure."""
    of_place: dict[str, Case] = dict(of_cell)
    classes: dict[str, dict[str, None]] = {case.id: {} for case in of_cell.values()}
    problems: dict[str, str] = {}
    for line in lines:
        data = line.data
        if (
            line.kind is Kind.CELL_PLANNED
            and line.cell
            and line.cell in of_cell
            and data.get("range")
        ):
            of_place[str(data["range"])] = of_cell[line.cell]
        case = of_place.get(str(line.cell or data.get("range") or ""))
        if case is None or data.get("place") != _PLACES.get(case.channel, "range"):
            continue
        if line.kind is Kind.GUARD_HIT:
            classes[case.id][printable(str(data["class"]))] = None
        elif line.kind is Kind.GUARD_UNSCANNED:
            problems.setdefault(case.id, printable(str(data["reason"])))
    return {name: (tuple(seen), problems.get(name, "")) for name, seen in classes.items()}


async def _take_step(cell: Cell, step: Step) -> None:
    if step.channel is Channel.MODEL:
        guard, part = cell.guard, model_part(step.data)
        if guard is not None:
            await anyio.to_thread.run_sync(lambda: guard.let_out(part, cell_id=cell.id))
        return
    if step.channel in (Channel.FILE, Channel.OUTPUT):
        await cell.write_file(CASE_FILE, step.data)
        if step.channel is Channel.FILE:
            await cell.read_file(CASE_FILE, max_bytes=max(1, len(step.data)))
        else:
            await cell.exec(["cat", CASE_FILE], timeout_s=STEP_TIMEOUT_S)
        return
    done = await cell.exec(
        ["python3", "-c", CLIENT], input=as_input(step), timeout_s=STEP_TIMEOUT_S
    )
    if done.code == 127 or done.code is None:
        raise HostError(
            "a case can't be sent: the image has no python3",
            where=printable(cell.plan.policy.image),
            hint="name an image that has it in the policy, or test without --live",
        )
    if done.code != 0:
        raise OSError(
            f"it could not be sent: {printable(done.stderr[-200:].decode('utf-8', 'replace'))}"
        )


def as_input(step: Step) -> bytes:
    """A step for `CLIENT`. Pure."""
    request = step.http
    message: dict[str, Any] = {
        "channel": step.channel.value,
        "host": HOST,
        "mail": MAIL_HOST,
        "names": step.names,
        "messages": [
            (1, base64.b64encode(each.encode()).decode())
            if isinstance(each, str)
            else (2, base64.b64encode(each).decode())
            for each in step.messages
        ],
        "data": base64.b64encode(step.data if request is None else request.body).decode(),
    }
    if request is not None:
        message |= {"method": request.method, "url": request.url, "headers": request.headers}
    return json.dumps(message).encode()
