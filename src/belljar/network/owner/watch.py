"""Reads one range's events from its gateway and supervisor, records and acknowledges them.

The gateway's messages are checked as a guest's are.
A violation, a changed rule, an ended process or an unrecordable event ends the range, once.
Both processes are killed first.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from belljar.errors import (
    BelljarError,
    CellError,
    ContainmentBreach,
    HostError,
    InvalidEventError,
    LedgerError,
    ProtocolViolation,
)
from belljar.events import Event, JsonValue, Kind, Recorder, Trust
from belljar.isolation.hold import KillOrder, killed_error
from belljar.network import ipc
from belljar.network.ipc import (
    DIAL,
    MAX_DATAGRAM_BYTES,
    EventDecoder,
    GatewayEvent,
    GatewayNotice,
    GatewayRequest,
    WireViolationError,
    encode_ack,
    encode_end,
    encode_reply,
)
from belljar.network.owner.dial import Dialler, NotAnUpstreamError
from belljar.network.owner.processes import wait_readable
from belljar.network.owner.range_state import (
    HeartbeatTimeout,
    RangeOverError,
    RangeProcesses,
    RangeState,
    RequestHandler,
)
from belljar.units import format_size, printable

_MAX_DIAGNOSIS_BYTES: Final = 16 << 10
SEND_TIMEOUT_S: Final = 10
# The longest that a process's silence goes unseen beyond its timeout.
POLL_INTERVAL_S: Final = 1.0
# The gateway's own deadline at the end: shorter than the owner's, so that its last message arrives.
FLUSH_INTERVAL_S: Final = 1.0
# The owner's wait at a range's end, and the gateway's time to report what is in progress.
SHUTDOWN_GRACE_S: Final = 2.0
# Each is a thread; a gateway of ours has fewer unanswered (`gateway.config.Bounds`).
MAX_PENDING_REQUESTS: Final = 128
# An event's line beside its data, and a body's place in it, counted generously.
_LINE_BYTES: Final = 512
_BODY_LINE_BYTES: Final = 320
BLOCK_BYTES: Final = 4096  # A body is a file: it takes whole blocks.
# In `limit.hit`: bytes that a range may put on record.
RECORD_LIMIT: Final = "range_record"
_HINT_RECORD_LIMIT: Final = (
    "its ledger shows what fills it; `network.record.events` in the policy allows more"
)
HINT_ENDED: Final = (
    "nothing of the range runs on: start again; `belljar ledger show last` shows what came before"
)


def cost_bytes(event: Event) -> int:
    """An upper bound of what an event takes of the disk, bodies included."""
    bodies = sum(
        _BODY_LINE_BYTES + -(-len(body.content) // BLOCK_BYTES) * BLOCK_BYTES
        for body in event.bodies
    )
    return _LINE_BYTES + len(json.dumps(event.data, separators=(",", ":"))) + bodies


class RangeWatch:
    """One range's thread; `closing`: its processes may end."""

    def __init__(
        self,
        range_id: str,
        processes: RangeProcesses,
        state: RangeState,
        recorder: Recorder,
        *,
        on_failure: Callable[[BelljarError], None],
        handle_request: RequestHandler | None,
        dialler: Dialler,
        max_recorded_bytes: int,
        timeout_s: float,
        killed: Callable[[], KillOrder | None] = lambda: None,
    ) -> None:
        """`max_recorded_bytes`: of its events. `killed`: the kill order that ends its processes."""
        self.state = state
        self.closing = False
        self._where = f"range {range_id}"
        self._range, self._processes, self._recorder = range_id, processes, recorder
        self._on_failure, self._handle_request, self._dialler = on_failure, handle_request, dialler
        self._decoder = EventDecoder()
        self._open = {processes.control, processes.events}
        self._is_ending = self._has_ended = False
        self._killed = killed
        self._unreported = 0
        self._gateway_done = threading.Event()
        self._stderr = b""
        self._max_recorded_bytes = max_recorded_bytes
        self._recorded_bytes = self._recorded_events = 0
        self._is_full = False
        self._send_lock = threading.Lock()
        self._dying, self._recording = threading.Lock(), threading.Lock()
        self._heartbeats = {name: HeartbeatTimeout(timeout_s) for name in ("supervisor", "gateway")}
        self._may_request = threading.Semaphore(MAX_PENDING_REQUESTS)
        self._thread = threading.Thread(target=self._run, name=f"range-{range_id}", daemon=True)
        os.set_blocking(processes.stderr, False)

    def start(self) -> None:
        """Begin to listen."""
        # A gateway that reads nothing must not hold the thread that watches the rules.
        self._processes.events.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_TIMEOUT_S, 0)
        )
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended: with both processes, or by an error. Kill first."""
        self._thread.join(timeout_s)
        self._dialler.close()
        return not self._thread.is_alive()

    def counters(self) -> Mapping[str, int]:
        """The supervisor's last counts, and what was recorded."""
        return {
            **self.state.counters,
            "events_recorded": self._recorded_events,
            "recorded_bytes": self._recorded_bytes,
            "unreported_at_end": self._unreported,
        }

    def diagnosis(self) -> str:
        """Both processes' standard error, escaped and bounded."""
        self._drain_stderr()
        return printable(self._stderr.strip(), max_chars=2000)

    def end_gateway(self) -> None:
        """Have the gateway report what is in progress, and wait two seconds at most.

        `unreported_at_end` counts what is in no event: as the gateway reports it, and what has no
        room on record. It counts one more when the gateway doesn't answer in time.
        """
        give_up = time.monotonic() + SHUTDOWN_GRACE_S
        self._is_ending = True
        if self._send_lock.acquire(timeout=SHUTDOWN_GRACE_S):
            try:
                self._processes.events.send(encode_end(FLUSH_INTERVAL_S), socket.MSG_DONTWAIT)
            except OSError:
                self._gateway_done.set()  # it is gone, or reads nothing
            finally:
                self._send_lock.release()
        self._gateway_done.wait(max(0.0, give_up - time.monotonic()))
        if not self._has_ended:
            self._unreported += 1

    def die(self, error: BelljarError) -> None:
        """End the range, once: kill, then notify. Thread-safe."""
        with self._dying:
            if self.state.error is not None:
                return
            # Nothing else can be the kill order's doing: a breach stays a breach.
            if type(error) is CellError:
                error = killed_error(self._killed(), where=self._where) or error
            self.state.error = error
        # Behind the thread's end both are gone, and their descriptors may be others' already.
        if self._thread.is_alive():
            for child in (self._processes.supervisor, self._processes.gateway):
                child.kill()
        self._gateway_done.set()
        reason = printable(error.what, max_chars=2000)
        data = {"range": self._range, "error": type(error).__name__, "reason": reason}
        try:
            self._recorder.record(Event(kind=Kind.RANGE_FAILED, data=data))
        except Exception as exc:  # noqa: BLE001 - noted on the error that is reported
            error.add_note(f"this could not be recorded: {exc}")
        self._on_failure(error)

    def _run(self) -> None:
        try:
            self._read_to_the_end()
        except Exception as exc:  # noqa: BLE001 - nothing may go on that isn't watched
            self.die(CellError(f"the range can't be watched: {exc!r}", where=self._where))
        finally:
            self._dialler.close()
            # Wakes what still waits for an answer or a milestone.
            self.state.replies.put(None)
            self.state.milestones.put(None)

    def _read_to_the_end(self) -> None:
        processes = self._processes
        ends = {
            processes.supervisor.pidfd: ("supervisor", processes.control),
            processes.gateway.pidfd: ("gateway", processes.events),
        }
        while ends or self._open:
            # A process's end counts when all its messages are read.
            read = [fd for fd, (_, end) in ends.items() if end not in self._open]
            began = time.monotonic()
            fds = [*(end.fileno() for end in self._open), *read]
            ready = wait_readable(fds, POLL_INTERVAL_S)
            for heartbeat in self._heartbeats.values():
                heartbeat.waited(min(time.monotonic() - began, POLL_INTERVAL_S))
            for end in [end for end in self._open if end.fileno() in ready]:
                self._receive(end)
            for fd in [fd for fd in read if fd in ready]:
                self._ended(ends.pop(fd)[0])
            self._drain_stderr()
            self._end_if_hung()

    def _end_if_hung(self) -> None:
        if self.closing or self.state.error is not None:
            return
        for name, heartbeat in self._heartbeats.items():
            if heartbeat.expired:
                silent = f"it has sent nothing for {heartbeat.timeout_s:.0f} s"
                what = f"the range's {name} hangs: {silent}"
                self.die(CellError(what, where=self._where, hint=HINT_ENDED))

    def _receive(self, source: socket.socket) -> None:
        try:
            if source is self._processes.control:
                self._receive_from_supervisor()
            else:
                self._receive_from_gateway()
        except (ipc.ClosedError, ConnectionError):
            self._open.discard(source)
            if source is self._processes.events:
                self._gateway_done.set()
        except BelljarError as exc:
            self.die(exc)
        except (ValueError, KeyError, TypeError) as exc:
            what = f"a part of the range sent a malformed message: {exc}"
            self.die(ProtocolViolation(what, where=self._where))
        except Exception as exc:  # noqa: BLE001 - nothing may go on that isn't watched
            what = f"an event of the range could not be processed: {exc!r}"
            self.die(CellError(what, where=self._where))

    def _receive_from_supervisor(self) -> None:
        message, fds = ipc.receive(self._processes.control)
        for fd in fds:
            os.close(fd)
        match message:
            case {"flow": flow}:
                self._record(Kind.NETWORK_FLOW, flow)
            case {"counters": counters}:  # the rules were checked
                self._heartbeats["supervisor"].message_received()
                self.state.counters = {str(name): int(count) for name, count in counters.items()}
            case {"done": _} | {"refused": _}:
                self.state.replies.put(message)
            case {"unshared": True} | {"started": True}:
                self.state.milestones.put(next(iter(message)))
            case {"breach": differences}:
                changes = printable("; ".join(str(difference) for difference in differences))
                what = f"the range's network was changed: {changes}"
                self.die(ContainmentBreach(what, where=self._where))
            case {"failed": reason}:
                error = HostError if message.get("host") else CellError
                what = f"the range's supervisor gave up: {printable(str(reason), max_chars=2000)}"
                hint = printable(str(message.get("hint", "")), max_chars=500)
                self.die(error(what, where=self._where, hint=hint))
            case _:
                raise ValueError("the supervisor's message")

    def _receive_from_gateway(self) -> None:
        # One byte more than allowed, so that a longer datagram is seen as one.
        datagram = ipc.receive_bytes(self._processes.events, MAX_DATAGRAM_BYTES + 1)
        self._heartbeats["gateway"].message_received()
        if self.state.error is not None:
            return
        try:
            message = self._decoder.feed(datagram)
        except WireViolationError as exc:
            what = f"the gateway broke its protocol: {exc}"
            raise ProtocolViolation(what, where=self._where) from exc
        match message:
            case GatewayEvent():
                unreported = self._unreported
                self._record(message.kind, message.data, message.bodies)
                if self._unreported == unreported:  # else it isn't on record: nobody is answered
                    self._send(encode_ack(message.id))
            case GatewayNotice(kind=ipc.READY):
                self.state.certificate = str(message.data.get("certificate", "")).encode()
                self._send(encode_ack(message.id))
                self.state.milestones.put("ready")
            case GatewayNotice(kind=ipc.ALIVE):
                self._send(encode_ack(message.id))
            case GatewayNotice():
                if not self._is_ending:
                    what = "the gateway broke its protocol: it has ended without a request"
                    raise ProtocolViolation(what, where=self._where)
                self._has_ended = True
                self._unreported += message.data["unreported"]
                self._gateway_done.set()
            case GatewayRequest():
                if not self._may_request.acquire(blocking=False):
                    what = f"more than {MAX_PENDING_REQUESTS} requests at once"
                    raise ProtocolViolation(what, where=self._where)
                name = f"range-{self._range}-request"
                threading.Thread(
                    target=self._answer, args=(message,), name=name, daemon=True
                ).start()

    def _record(self, kind: Kind, data: Mapping[str, Any], bodies: tuple[Any, ...] = ()) -> None:
        named = {**data, "range": self._range}
        event = Event(kind=kind, data=named, bodies=bodies, trust=Trust.HOST_OBSERVED)
        try:
            with self._recording:
                self._spend(event)
        except InvalidEventError as exc:
            what = f"a part of the range sent what can't be recorded: {exc.what}"
            raise ProtocolViolation(what, where=self._where) from exc
        except OSError as exc:
            what = f"an event of the range can't be recorded: {exc}"
            raise LedgerError(what, where=self._where) from exc

    def _spend(self, event: Event) -> None:
        """Record within the bound. Raises `CellError`: no room."""
        after_bytes = self._recorded_bytes + cost_bytes(event)
        if after_bytes <= self._max_recorded_bytes:
            self._recorded_bytes = after_bytes
            self._recorded_events += 1
            self._recorder.record(event)
        else:
            limit = self._max_recorded_bytes
            if not self._is_full:
                self._is_full = True
                data: dict[str, JsonValue] = {"range": self._range, "limit": RECORD_LIMIT}
                data |= {"value": limit, "effect": "the range ends"}
                self._recorder.record(Event(kind=Kind.LIMIT_HIT, data=data))
            if self._is_ending:
                self._unreported += 1
                return
            what = f"the range has put {format_size(limit)} on record, which is all that it may"
            raise CellError(what, where=self._where, hint=_HINT_RECORD_LIMIT)

    def _answer(self, request: GatewayRequest) -> None:
        try:
            (self._dial if request.what == DIAL else self._reply)(request)
        finally:
            self._may_request.release()

    def _reply(self, request: GatewayRequest) -> None:
        try:
            if self._handle_request is None:
                raise ValueError("this range has no request handler")
            datagrams = encode_reply(request.id, self._handle_request(request.what, request.body))
        except Exception as exc:  # noqa: BLE001 - the gateway gets the reason; the range goes on
            self._refuse(request, exc)
        else:
            self._send(*datagrams)

    def _dial(self, request: GatewayRequest) -> None:
        # A request outside the plan ends the range.
        try:
            with self._dialler.dial(request.body, self._record_dial) as end:
                self._send(encode_reply(request.id, b"")[0], fds=(end.fileno(),))
                return
        except NotAnUpstreamError as exc:
            self.die(ProtocolViolation(f"the gateway broke its protocol: {exc}", where=self._where))
        # It can't be recorded: then nothing is dialled, and nothing goes on
        except BelljarError as exc:
            self.die(exc)
        except Exception as exc:  # noqa: BLE001 - the gateway gets the reason; the range goes on
            self._refuse(request, exc)

    def _refuse(self, request: GatewayRequest, reason: Exception) -> None:
        text = printable(str(reason), max_chars=500).encode()
        self._send(*encode_reply(request.id, text, ok=False))

    def _record_dial(self, data: Mapping[str, Any]) -> None:
        # Raises `LedgerError`, `RangeOverError`: what is not on record is not dialled.
        if self.closing or self.state.error is not None:
            raise RangeOverError("the range is over")
        self._record(Kind.NETWORK_UPSTREAM, data)

    def _send(self, *datagrams: bytes, fds: Sequence[int] = ()) -> None:
        try:
            with self._send_lock:
                for datagram in datagrams:
                    socket.send_fds(self._processes.events, [datagram], list(fds))
        except BlockingIOError:
            what = "the gateway does not read what it is sent"
            self.die(ProtocolViolation(what, where=self._where))
        except OSError:  # one that is gone is seen elsewhere
            pass

    def _ended(self, name: str) -> None:
        child = self._processes.supervisor if name == "supervisor" else self._processes.gateway
        if not self.closing and self.state.error is None:
            # SIGSYS is its wall's word: the strongest sign that it was taken over.
            how = self._processes.fork_server.how_ended(child)
            diagnosis = self.diagnosis()
            detail = f"{' (' + how + ')' if how else ''}{': ' + diagnosis if diagnosis else ''}"
            what = f"the range's {name} ended{detail}"
            self.die(CellError(what, where=self._where, hint=HINT_ENDED))

    def _drain_stderr(self) -> None:
        # A pipe's content at most: a gateway that writes without end must not hold this thread.
        with suppress(BlockingIOError):
            piece = os.read(self._processes.stderr, 1 << 16)
            self._stderr = (self._stderr + piece)[:_MAX_DIAGNOSIS_BYTES]
