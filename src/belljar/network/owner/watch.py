"""Reads one range's events from its gateway and supervisor, records and acknowledges them.

A violation, a changed rule, an ended process or an unrecordable event ends the range, once.
"""

from __future__ import annotations

import json
import os
import queue
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
from belljar.events import Body, Event, JsonValue, Kind, Recorder, Trust
from belljar.isolation.hold import KillOrder, killed_error
from belljar.network import ipc
from belljar.network.ipc import Item, WireViolationError
from belljar.network.owner.dial import Dialler, NotAnUpstreamError
from belljar.network.owner.processes import HINT_ENDED, RangeProcesses, RangeSpec, wait_readable
from belljar.network.owner.told import ToldConnections
from belljar.units import format_size, printable

_MAX_DIAGNOSIS_BYTES: Final = 16 << 10
_REPLY_TIMEOUT_S: Final = 30.0
SEND_TIMEOUT_S: Final = 10
# A message that takes longer was waited for: the gateway had not read those before.
_WAITED_S: Final = 0.1
# A supervisor of ours answers once, and reports each milestone once.
_MAX_UNREAD_REPLIES: Final = 8
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
# Answers a gateway's request (kind, body); `ValueError` refuses.
RequestHandler = Callable[[str, bytes], bytes]


def cost_bytes(event: Event) -> int:
    """Return an upper bound of an event's disk use."""
    bodies = sum(
        _BODY_LINE_BYTES + -(-len(body.content) // BLOCK_BYTES) * BLOCK_BYTES
        for body in event.bodies
    )
    return _LINE_BYTES + len(json.dumps(event.data, separators=(",", ":"))) + bodies


class RangeWatch:
    """One thread reads the range's processes; `error` is what ended it.

    `milestones`: `unshared`, `started`, `ready`; None ends them.
    """

    def __init__(
        self,
        range_id: str,
        spec: RangeSpec,
        processes: RangeProcesses,
        recorder: Recorder,
        *,
        on_failure: Callable[[BelljarError], None],
        handle_request: RequestHandler | None,
        dialler: Dialler,
        killed: Callable[[], KillOrder | None] = lambda: None,
    ) -> None:
        self.error: BelljarError | None = None
        self.certificate, self._stderr = b"", b""
        self.closing = False
        self.milestones = queue.SimpleQueue[str | None]()
        # The supervisor's answers, in order; None ends them.
        self._replies = queue.SimpleQueue[dict[str, Any] | None]()
        self._supervisor_counters: dict[str, int] = {}
        self._last_request = 0
        self._where = f"range {range_id}"
        self._range, self._processes, self._recorder = range_id, processes, recorder
        self._on_failure, self._handle_request, self._dialler = on_failure, handle_request, dialler
        self._told = ToldConnections(spec.layout, spec.network)
        self._decoder = ipc.EventDecoder()
        self._open = {processes.control, processes.events}
        self._is_ending = self._has_ended = self._is_full = False
        self._killed = killed
        self._unreported = self._recorded_bytes = 0
        self._max_recorded_bytes = spec.network.bounds.recorded_bytes
        self._gateway_done = threading.Event()
        self._requesting, self._send_lock = threading.Lock(), threading.Lock()
        self._dying, self._recording = threading.Lock(), threading.Lock()
        self._waited_s = 0.0  # one message after the other
        # How long each has sent nothing. Only time spent waiting on the sockets counts, so a late
        # owner ends no healthy range; nothing before the first message: the start has a deadline.
        self._silent_s = dict.fromkeys(("supervisor", "gateway"), float("-inf"))
        self._timeout_s = spec.check_every_s + spec.timeout_s
        self._may_request = threading.Semaphore(MAX_PENDING_REQUESTS)
        self._thread = threading.Thread(target=self._run, name=f"range-{range_id}", daemon=True)
        os.set_blocking(processes.stderr, False)
        # A gateway that reads nothing must not hold the thread that watches the rules.
        timeout = struct.pack("@ll", SEND_TIMEOUT_S, 0)
        processes.events.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

        self.start = self._thread.start

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        self._dialler.close()
        return not self._thread.is_alive()

    def counters(self) -> Mapping[str, int]:
        unreported = self._told.unreported(self._supervisor_counters.get("datagrams_answered", 0))
        return {**self._supervisor_counters, "unreported_at_end": self._unreported + unreported}

    def diagnosis(self) -> str:
        self._drain_stderr()
        return printable(self._stderr.strip(), max_chars=2000)

    def ask_supervisor(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Have a request done, with copies of descriptors. Thread-safe.

        Raises what the range died of; `CellError`: refused, or no reply within 30 s.
        """
        with self._requesting:
            self._last_request += 1
            request = {**message, "id": self._last_request}
            with suppress(ipc.ClosedError, OSError):  # the thread sees its end
                ipc.send(self._processes.control, request, fds)
            give_up, reply = time.monotonic() + _REPLY_TIMEOUT_S, dict[str, Any]()
            while self._last_request not in (reply.get("done"), reply.get("refused")):
                try:
                    found = self._replies.get(timeout=max(0.0, give_up - time.monotonic()))
                except queue.Empty:
                    what = "the range's supervisor does not answer"
                    raise CellError(what, where=self._where) from None
                if found is None:
                    self._replies.put(None)  # for the next caller
                    raise self.error or CellError("the range has ended", where=self._where)
                reply = found
        if "refused" in reply:
            what = f"the range's supervisor could not: {printable(str(reply.get('reason')))}"
            raise CellError(what, where=self._where)
        if self.error is not None:
            raise self.error

    def end_gateway(self) -> None:
        """Have the gateway report what is in progress; wait two seconds at most.

        `unreported_at_end` counts what is in no event, and one more if it doesn't answer.
        """
        give_up = time.monotonic() + SHUTDOWN_GRACE_S
        self._is_ending = True
        if self._send_lock.acquire(timeout=SHUTDOWN_GRACE_S):
            try:
                end = json.dumps({"end": FLUSH_INTERVAL_S}).encode()
                self._processes.events.send(end, socket.MSG_DONTWAIT)
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
            if self.error is not None:
                return
            # Nothing else can be the kill order's doing: a breach stays a breach.
            if type(error) is CellError:
                error = killed_error(self._killed(), where=self._where) or error
            self.error = error
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
            self._replies.put(None)
            self.milestones.put(None)

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
            for name in self._silent_s:
                self._silent_s[name] += min(time.monotonic() - began, POLL_INTERVAL_S)
            # The supervisor's first: its word of a breach waits behind no gateway's messages
            reported = processes.control in self._open and processes.control.fileno() in ready
            for end in [end for end in self._open if end.fileno() in ready]:
                if end is processes.control or not reported:
                    self._receive(end)
            for fd in [fd for fd in read if fd in ready]:
                name, _ = ends.pop(fd)
                if not self.closing and self.error is None:
                    # SIGSYS: its filter killed it, the strongest sign that it was compromised.
                    child = processes.supervisor if name == "supervisor" else processes.gateway
                    how, said = processes.fork_server.how_ended(child), self.diagnosis()
                    what = f"the range's {name} ended" + (f" ({how})" if how else "")
                    what += f": {said}" if said else ""
                    self.die(CellError(what, where=self._where, hint=HINT_ENDED))
            self._drain_stderr()
            for name, silent_s in self._silent_s.items():
                if silent_s > self._timeout_s and not self.closing:
                    silent = f"it has sent nothing for {self._timeout_s:.0f} s"
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
        except (ValueError, KeyError, TypeError, OverflowError) as exc:
            what = f"a part of the range sent a malformed message: {exc}"
            self.die(ProtocolViolation(what, where=self._where))

    def _receive_from_supervisor(self) -> None:
        message, fds = ipc.receive(self._processes.control)
        for fd in fds:
            os.close(fd)
        match message:
            case {"flow": flow}:
                self._record(Kind.NETWORK_FLOW, flow)
            case {"answered": connections}:
                for connection, is_long in connections:
                    if problem := self._told.answer(bytes.fromhex(connection), is_long=is_long):
                        raise self._violation(problem)
            case {"counters": counters}:  # the rules were checked
                self._silent_s["supervisor"] = 0.0
                counted = {str(name): int(count) for name, count in counters.items()}
                self._supervisor_counters = counted
            case {"done": _} | {"refused": _} if self._replies.qsize() < _MAX_UNREAD_REPLIES:
                self._replies.put(message)
            case {"unshared": True} | {"started": True} if (
                self.milestones.qsize() < _MAX_UNREAD_REPLIES
            ):
                self.milestones.put(next(iter(message)))
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
        datagram = ipc.receive_bytes(self._processes.events, ipc.MAX_DATAGRAM_BYTES + 1)
        self._silent_s["gateway"] = 0.0
        if self.error is not None:
            return
        try:
            message = self._decoder.feed(datagram)
        except WireViolationError as exc:
            raise self._violation(str(exc)) from exc
        match message:
            case None | Item(kind=ipc.ALIVE):
                self._spend(_LINE_BYTES)  # else a flood of what is on no record would have no end
                if message is not None:
                    self._send(ipc.encode_ack(message.id))
            case Item(kind=ipc.READY):
                self.certificate = str(message.data.get("certificate", "")).encode()
                self._send(ipc.encode_ack(message.id))
                self.milestones.put("ready")
            case Item(kind=ipc.ENDED):
                if not self._is_ending:
                    raise self._violation("it has ended without a request")
                self._has_ended = True
                self._unreported += message.data["unreported"]
                self._gateway_done.set()
            case Item(kind=ipc.ASK):
                if not self._may_request.acquire(blocking=False):
                    raise self._violation(f"more than {MAX_PENDING_REQUESTS} requests at once")
                name = f"range-{self._range}-request"
                arguments = (message.id, message.data["what"], message.bodies[0].content)
                threading.Thread(
                    target=self._answer, args=arguments, name=name, daemon=True
                ).start()
            case _:
                unreported = self._unreported
                self._record(message.kind, message.data, message.bodies)
                if self._unreported == unreported:  # else it isn't on record: nobody is answered
                    has_secrets = any(body.name == ipc.SECRETS for body in message.bodies)
                    self._told.take(message.kind, message.data, has_secrets=has_secrets)
                    self._send(ipc.encode_ack(message.id))

    def _violation(self, problem: str) -> ProtocolViolation:
        return ProtocolViolation(f"the gateway broke its protocol: {problem}", where=self._where)

    def _record(self, kind: str, data: Mapping[str, Any], bodies: tuple[Body, ...] = ()) -> None:
        named = {**data, "range": self._range}
        event = Event(kind=Kind(kind), data=named, bodies=bodies, trust=Trust.HOST_OBSERVED)
        try:
            self._spend(cost_bytes(event), event)
        except InvalidEventError as exc:
            what = f"a part of the range sent what can't be recorded: {exc.what}"
            raise ProtocolViolation(what, where=self._where) from exc
        except OSError as exc:
            what = f"an event of the range can't be recorded: {exc}"
            raise LedgerError(what, where=self._where) from exc

    def _spend(self, cost: int, event: Event | None = None) -> None:
        limit = self._max_recorded_bytes
        with self._recording:
            if self._recorded_bytes + cost <= limit:
                self._recorded_bytes += cost
                if event is not None:
                    self._recorder.record(event)
                return
            if not self._is_full:
                self._is_full = True
                data: dict[str, JsonValue] = {"range": self._range, "limit": RECORD_LIMIT}
                data |= {"value": limit, "effect": "the range ends"}
                self._recorder.record(Event(kind=Kind.LIMIT_HIT, data=data))
        if not self._is_ending:
            what = f"the range has put {format_size(limit)} on record, which is all that it may"
            raise CellError(what, where=self._where, hint=_HINT_RECORD_LIMIT)
        self._unreported += event is not None

    def _answer(self, number: int, what: str, body: bytes) -> None:
        try:
            if what == ipc.DIAL:
                with self._dialler.dial(body, self._record_dial) as end:
                    self._send(ipc.encode_reply(number, b"")[0], fds=(end.fileno(),))
            elif self._handle_request is None:
                self.die(self._violation("a request that no stand-in of this range makes"))
            else:
                self._send(*ipc.encode_reply(number, self._handle_request(what, body)))
        except NotAnUpstreamError as exc:  # outside the plan
            self.die(self._violation(str(exc)))
        except Exception as exc:  # noqa: BLE001 - the gateway gets the reason; the range goes on
            if what == ipc.DIAL and isinstance(exc, BelljarError):
                # It can't be recorded: then nothing is dialled, and nothing goes on
                self.die(exc)
            else:
                reason = printable(str(exc), max_chars=500).encode()
                self._send(*ipc.encode_reply(number, reason, ok=False))
        finally:
            self._may_request.release()

    def _record_dial(self, data: Mapping[str, Any]) -> None:
        # Raises: what is not on record is not dialled.
        if self.closing or self.error is not None:
            raise ValueError("the range is over")
        self._record(Kind.NETWORK_UPSTREAM, data)

    def _send(self, *datagrams: bytes, fds: Sequence[int] = ()) -> None:
        try:
            with self._send_lock:
                for datagram in datagrams:
                    began = time.monotonic()
                    socket.send_fds(self._processes.events, [datagram], list(fds))
                    waited_s = time.monotonic() - began
                    # Each in time, one that reads a little now and then would hold up all others
                    self._waited_s = self._waited_s + waited_s if waited_s > _WAITED_S else 0.0
                    if self._waited_s > self._timeout_s:
                        raise BlockingIOError
        except BlockingIOError:
            self.die(self._violation("it does not read what it is sent"))
        except OSError:  # one that is gone is seen elsewhere
            pass

    def _drain_stderr(self) -> None:
        # A pipe's content at most: a gateway that writes without end must not hold this thread.
        with suppress(BlockingIOError):
            piece = os.read(self._processes.stderr, 1 << 16)
            self._stderr = (self._stderr + piece)[:_MAX_DIAGNOSIS_BYTES]
