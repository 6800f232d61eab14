"""The host's end of the connection, without I/O: bytes to checked events, requests to bytes.

`feed` accepts exactly what `design/channel.md` allows now. Memory is bounded: one incomplete frame
between two calls, and an operation's output by the credit and the caps that the host gave.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final

from belljar.channel import frames
from belljar.channel.frames import Answer, FrameType, OpKind, Outcome, Payload, Progress, Result
from belljar.dataclass import dataclass
from belljar.errors import ProtocolViolation

_DATA: Final = int(FrameType.DATA)
_RESULT: Final = struct.Struct("<BBHiQQQ")
# No honest count reaches it; two, and what the host dropped, add up to what the ledger takes.
_MAX_COUNT: Final = (1 << 51) - 1
# What the guest agent itself is asked, and how it answers.
_ANSWERS: Final = {
    FrameType.CONFIG: FrameType.CONFIGURED,
    FrameType.RENEW: FrameType.RENEWED,
    FrameType.FREEZE: FrameType.FROZEN,
}
_OF_OPERATIONS: Final = {FrameType.EOF, FrameType.CREDIT, FrameType.STARTED, FrameType.RESULT}
_OF_CONNECTION: Final = {
    *_ANSWERS.values(),
    *(FrameType.READY, FrameType.WELCOME, FrameType.PONG),
    *(FrameType.WATCHED, FrameType.TOUCHED, FrameType.FATAL),
}
# All bits of `RenewedBit`.
_RENEWED_BITS: Final = 63


@dataclass(slots=True)
class _LiveOp:
    kind: OpKind
    stdin_open: bool
    stdin_credit: int
    caps_left: dict[int, int]
    """Open output streams → bytes that may still come."""
    output_credit: int = frames.OUTPUT_WINDOW_BYTES
    started: bool = False
    left: bool = False
    """A service's program was let go and may run on after RESULT."""


class HostConnection:
    """One connection's state. Sends of a dead operation return `b""`."""

    def __init__(self) -> None:
        self._pending = bytearray()  # of an incomplete frame: at most a header and a full payload
        self._violation: ProtocolViolation | None = None
        self._ended = False
        self._is_ready = False
        self._nonce: bytes | None = None
        self._welcome: Answer | None = None
        self._awaited = set[FrameType]()
        self._renewed = False
        self._pings: deque[int] = deque()
        self._watches: deque[int] = deque()
        self._watched_files = self._touches_left = 0
        self._live: dict[int, _LiveOp] = {}
        self._next_op = 1

    @property
    def live_ops(self) -> int:
        return len(self._live)

    def stdin_credit(self, op: int) -> int:
        state = self._live.get(op)
        return state.stdin_credit if state is not None and state.stdin_open else 0

    # ---- guest → host

    def feed(self, data: bytes | bytearray | memoryview) -> list[frames.GuestEvent]:
        """Take received bytes; return completed events. Raise `ProtocolViolation`."""
        if self._violation is not None:
            # A new exception each time: one that is raised again collects tracebacks.
            old = self._violation
            raise ProtocolViolation(old.what, where=old.where, hint=old.hint)
        if self._ended:
            return []
        self._pending += data
        try:
            return self._take_frames()
        except ProtocolViolation as violation:
            self._violation = violation
            self._pending = bytearray()
            self._live.clear()
            raise

    def _take_frames(self) -> list[frames.GuestEvent]:
        pending, at, events = self._pending, 0, list[frames.GuestEvent]()
        end = len(pending)
        # Released before `del` below: a bytearray that has a view can't be resized (BufferError).
        with memoryview(pending) as view:
            while end - at >= frames.HEADER.size and not self._ended:
                length, kind, flags, reserved, op = frames.HEADER.unpack_from(pending, at)
                # At the header already: no guest makes the host wait for, or hold, a payload over
                # the limit.
                if length > frames.MAX_PAYLOAD_BYTES or flags or reserved:
                    frames.violated(
                        f"a frame header with length {length}, flags {flags}, reserved {reserved}",
                        kind,
                        op,
                    )
                start, at_next = at + frames.HEADER.size, at + frames.HEADER.size + length
                if at_next > end:
                    break
                if kind == _DATA:
                    events.append(self._on_data(op, view, start, at_next))
                else:
                    events.append(self._on_frame(kind, op, bytes(view[start:at_next])))
                at = at_next
        if self._ended:
            self._pending = bytearray()
        elif at:
            del pending[:at]
        return events

    def _on_frame(self, kind: int, op: int, raw: bytes) -> frames.GuestEvent:
        payload = Payload(raw, kind=kind, op=op)
        if kind in _OF_CONNECTION:
            if op:
                frames.violated("a connection frame that names an operation", kind, op)
            event = self._on_connection(FrameType(kind), payload)
        elif kind in _OF_OPERATIONS:
            event = self._on_operation(FrameType(kind), op, self._live_op(kind, op), payload)
        else:
            frames.violated("a frame of a type that a guest may not send", kind, op)
        payload.end()
        return event

    def _live_op(self, kind: int, op: int) -> _LiveOp:
        state = self._live.get(op)
        if state is None:
            frames.violated("a frame for an operation that is not live", kind, op)
        return state

    def _on_connection(self, kind: FrameType, payload: Payload) -> frames.GuestEvent:
        match kind:
            case FrameType.READY:
                if self._is_ready or self._welcome is not None:
                    payload.violated("a READY that comes twice or after WELCOME")
                self._is_ready = True
                self._check_version(payload)
                return Answer(kind=kind, detail=payload.text())
            case FrameType.WELCOME:
                return self._on_welcome(payload)
            case FrameType.PONG:
                if not self._pings or self._pings.popleft() != payload.number(8):
                    payload.violated("a PONG that answers no PING, or out of order")
                return Answer(kind=kind)
            case FrameType.WATCHED:
                return self._on_watched(payload)
            case FrameType.TOUCHED:
                return self._on_touched(payload)
            case FrameType.FATAL:
                self._ended = True
                return Answer(kind=kind, detail=payload.text())
        if kind not in self._awaited:
            payload.violated(f"a {kind.name} that was not asked for")
        self._awaited.discard(kind)
        if kind is FrameType.RENEWED:
            return self._on_renewed(payload)
        code = payload.errno()
        detail = payload.text() if kind is FrameType.CONFIGURED else ""
        return Answer(kind=kind, errno=code, detail=detail)

    def _on_welcome(self, payload: Payload) -> Answer:
        if self._nonce is None or self._welcome is not None:
            payload.violated("a WELCOME that was not asked for")
        self._check_version(payload)
        if payload.take(frames.NONCE_BYTES) != self._nonce:
            payload.violated("a WELCOME with another nonce than HELLO's")
        max_ops, window = payload.number(4), payload.number(4)
        if max_ops == 0 or not 1 <= window <= frames.MAX_STDIN_WINDOW_BYTES:
            payload.violated(
                f"a WELCOME that grants {max_ops} operations and a stdin window of {window} bytes"
            )
        kind = FrameType.WELCOME
        self._welcome = Answer(kind=kind, max_ops=max_ops, stdin_window_bytes=window)
        return self._welcome

    def _check_version(self, payload: Payload) -> None:
        version, ours = payload.number(2), frames.PROTOCOL_VERSION
        if version != ours:
            payload.violated(f"the agent speaks version {version}, this host {ours}")

    def _on_renewed(self, payload: Payload) -> Answer:
        self._renewed = True
        done = payload.number(4)
        if done & ~_RENEWED_BITS:
            payload.violated(f"done bits {done:#x}")
        return Answer(kind=FrameType.RENEWED, done=frames.RenewedBit(done), detail=payload.text())

    def _on_watched(self, payload: Payload) -> Answer:
        if not self._watches:
            payload.violated("a WATCHED that was not asked for")
        asked, code, count = self._watches.popleft(), payload.errno(), payload.number(4)
        if count not in (0, asked) or (count != asked and not code):
            payload.violated(f"errno {code} and {count} answers for {asked} files")
        self._watched_files = count
        errors = tuple(payload.errno() for _ in range(count))
        return Answer(kind=FrameType.WATCHED, errno=code, errors=errors)

    def _on_touched(self, payload: Payload) -> frames.Touched:
        index, operation = payload.number(4), payload.number(2)
        count, pid, process = payload.number(4), payload.number(4), payload.text()
        if index >= self._watched_files or operation not in (1, 2, 3) or not count:
            payload.violated(f"operation {operation} on file {index}, {count} times")
        if not self._touches_left or len(process) > 4 * frames.MAX_PROCESS_NAME_BYTES:
            payload.violated("more touches than may be reported, or a process name too long")
        self._touches_left -= 1
        return frames.Touched(
            index=index, operation=operation, count=count, pid=pid, process=process
        )

    def _on_data(self, op: int, view: memoryview, start: int, end: int) -> frames.Data:
        state, count = self._live_op(_DATA, op), end - start - 1
        if count < 1:
            frames.violated("DATA without a byte in it", _DATA, op)
        stream = view[start]
        left = state.caps_left.get(stream)
        if left is None or not state.started:
            frames.violated(f"DATA of stream {stream}, which is not open", _DATA, op)
        granted = min(state.output_credit, left)
        if count > granted:
            frames.violated(f"{count} bytes where {granted} were granted", _DATA, op)
        state.output_credit -= count
        state.caps_left[stream] = left - count
        return frames.Data(
            op=op, stream=frames.Stream(stream), content=bytes(view[start + 1 : end])
        )

    def _on_operation(
        self, kind: FrameType, op: int, state: _LiveOp, payload: Payload
    ) -> Progress | Result:
        match kind:
            case FrameType.EOF:
                value = payload.number(1)
                if value not in state.caps_left or not state.started:
                    payload.violated(f"EOF of stream {value}, which is not open")
                del state.caps_left[value]
            case FrameType.CREDIT:
                window = self._welcome.stdin_window_bytes if self._welcome else 0
                value, credit = payload.number(4), state.stdin_credit
                if value == 0 or credit + value > window:
                    payload.violated(
                        f"{value} bytes of credit on top of {credit}; the window is {window}"
                    )
                state.stdin_credit += value
            case FrameType.STARTED:
                value = payload.number(8)
                if state.started or value > _MAX_COUNT or (value and state.kind is not OpKind.READ):
                    payload.violated(f"a STARTED that comes twice or with info {value}")
                state.started = True
            case _:
                return self._on_result(op, state, payload)
        return Progress(kind=kind, op=op, value=value)

    def _on_result(self, op: int, state: _LiveOp, payload: Payload) -> Result:
        outcome, flags, stage, code, stdout_dropped, stderr_dropped, duration = _RESULT.unpack(
            payload.take(_RESULT.size)
        )
        if outcome > Outcome.IO_FAILED or stage > frames.Stage.CREDENTIALS:
            payload.violated(f"outcome {outcome}, flags {flags:#x}, stage {stage}")
        if flags & frames.ResultFlag.RUNS_ON and not (state.left and outcome == Outcome.EXITED):
            payload.violated("a program that runs on, and was not let go")
        if max(stdout_dropped, stderr_dropped, duration) > _MAX_COUNT:
            payload.violated("a count that can't be")
        is_exec = state.kind is OpKind.EXEC
        codes = {
            Outcome.EXITED: range(256 if is_exec else 1),
            Outcome.SIGNALED: range(1, frames.MAX_SIGNAL + 1),
            Outcome.NOT_STARTED: range(1, frames.MAX_ERRNO + 1),
            Outcome.IO_FAILED: range(0 if is_exec else 1, 0 if is_exec else frames.MAX_ERRNO + 1),
        }
        is_late = outcome == Outcome.NOT_STARTED and state.started and is_exec
        is_early = outcome == Outcome.EXITED and not state.started
        if code not in codes[Outcome(outcome)] or is_late or is_early:
            payload.violated(f"outcome {outcome} with code {code}, started: {state.started}")
        del self._live[op]
        return Result(
            op=op,
            outcome=Outcome(outcome),
            flags=frames.ResultFlag(flags),
            stage=frames.Stage(stage),
            code=code,
            stdout_dropped_bytes=stdout_dropped,
            stderr_dropped_bytes=stderr_dropped,
            duration_ns=duration,
            detail=payload.text(),
        )

    # ---- host → guest

    def send_hello(self, nonce: bytes) -> bytes:
        """Return HELLO, once, with a fresh random 16-byte nonce."""
        self._nonce = nonce
        version = frames.PROTOCOL_VERSION.to_bytes(2, "little")
        return frames.frame(FrameType.HELLO, 0, version + nonce)

    def ask(self, kind: FrameType, payload: bytes) -> bytes:
        """Return CONFIG, RENEW or FREEZE; one of each at a time."""
        answer = _ANSWERS[kind]
        is_renewed = self._renewed or kind is not FrameType.FREEZE
        self._in_order(holds=is_renewed and answer not in self._awaited)
        message = frames.frame(kind, 0, payload)
        self._awaited.add(answer)
        return message

    def send_ping(self, cookie: int) -> bytes:
        """Return PING. Answers come in the order of the questions."""
        self._in_order()
        message = frames.frame(FrameType.PING, 0, cookie.to_bytes(8, "little"))
        self._pings.append(cookie)
        return message

    def send_watch(self, paths: Sequence[str], max_touches: int) -> bytes:
        self._in_order()
        if len(paths) > frames.MAX_WATCHED_FILES:
            raise ValueError(f"{len(paths)} files; at most {frames.MAX_WATCHED_FILES}")
        names = frames.counted_list(frames.text_bytes(path, "path") for path in paths)
        message = frames.frame(FrameType.WATCH, 0, max_touches.to_bytes(4, "little") + names)
        self._watches.append(len(paths))
        if paths:
            self._touches_left = max_touches
        return message

    def start(
        self,
        kind: OpKind,
        body: bytes,
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        stdin_open: bool = False,
    ) -> tuple[int, bytes]:
        """Return a new operation's id and frames; streams have byte limits."""
        welcome = self._in_order(holds=self._renewed)
        op, window = self._next_op, welcome.stdin_window_bytes
        message = frames.request_frames(op, kind, body)
        caps = {int(frames.Stream.STDOUT): stdout, int(frames.Stream.STDERR): stderr}
        self._live[op] = _LiveOp(
            kind=kind,
            stdin_open=stdin_open,
            stdin_credit=window,
            caps_left={stream: cap for stream, cap in caps.items() if cap is not None},
        )
        self._next_op += 1  # never used again: an answer that comes late belongs to nobody
        return op, message

    def send_data(self, op: int, content: bytes | memoryview) -> bytes:
        state = self._live.get(op)
        if state is None:
            return b""
        if not state.stdin_open or not 1 <= len(content) <= state.stdin_credit:
            raise RuntimeError("stdin is closed, or more than its credit was to be sent")
        message = frames.frame(
            FrameType.DATA, op, b"".join((bytes((frames.Stream.STDIN,)), content))
        )
        state.stdin_credit -= len(content)
        return message

    def send_eof(self, op: int) -> bytes:
        state = self._live.get(op)
        if state is None or not state.stdin_open:
            return b""
        state.stdin_open = False
        return frames.frame(FrameType.EOF, op, bytes((frames.Stream.STDIN,)))

    def send_credit(self, op: int, taken_bytes: int) -> bytes:
        state = self._live.get(op)
        if state is None or taken_bytes == 0:
            return b""
        if taken_bytes < 0 or state.output_credit + taken_bytes > frames.OUTPUT_WINDOW_BYTES:
            raise RuntimeError("more output credit returned than was used")
        state.output_credit += taken_bytes
        return frames.frame(FrameType.CREDIT, op, taken_bytes.to_bytes(4, "little"))

    def send_signal(self, op: int, signo: int, scope: frames.SignalScope) -> bytes:
        if not 1 <= signo <= frames.MAX_SIGNAL:
            raise ValueError(f"{signo} is not a signal; 1 to {frames.MAX_SIGNAL}")
        if op not in self._live:
            return b""
        self._live[op].left |= scope is frames.SignalScope.LEAVE
        return frames.frame(FrameType.SIGNAL, op, bytes((signo, scope)))

    def send_resize(self, op: int, rows: int, columns: int) -> bytes:
        frames.check_size(rows, columns)
        size = struct.pack("<HH", rows, columns)
        return frames.frame(FrameType.RESIZE, op, size) if op in self._live else b""

    def _in_order(self, *, holds: bool = True) -> Answer:
        if self._welcome is None or not holds:
            raise RuntimeError("the order is HELLO, RENEW and their answers, then operations")
        return self._welcome
