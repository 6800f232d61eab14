"""One session of an SSH connection: a command, or a shell with or without a terminal (RFC 4254, 5
and 6). Pure: fields in, payloads out."""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Final

from belljar.dataclass import dataclass
from belljar.network.stand_ins.ssh.shell import MAX_LINE_CHARS, MOTD, Host, Result, Shell
from belljar.network.stand_ins.ssh.wire import Fields, Malformed, number, text

MAX_PENDING_BYTES: Final = 1 << 20
"""Of output for which the client has no room; a session with more is ended."""
MAX_SENT_BYTES: Final = 32 << 10
"""Of output in one packet."""
_ADJUST, _DATA, _EXTENDED, _EOF, _CLOSE, _REQUEST, _SUCCESS, _FAILURE = (
    93,
    94,
    95,
    96,
    97,
    98,
    99,
    100,
)
_NAMES: Final = {
    _ADJUST: "window",
    _DATA: "input",
    _EXTENDED: "input",
    _EOF: "eof",
    _CLOSE: "close",
}
_STDERR: Final = 1
_MIN_PACKET_BYTES: Final = 64
_MAX_WINDOW: Final = 0xFFFFFFFF
_RUBOUT, _CTRL_C, _CTRL_D, _CTRL_H, _CTRL_U, _ESCAPE = (
    "\x7f",
    "\x03",
    "\x04",
    "\x08",
    "\x15",
    "\x1b",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one message was, what a person or program said with it, and the answer."""

    name: str
    data: bytes = b""
    payloads: tuple[bytes, ...] = ()


class Channel:
    """One session."""

    WINDOW_BYTES: ClassVar[int] = 2 << 20
    PACKET_BYTES: ClassVar[int] = 4 << 10
    """Of input at once: 4,096 empty lines of a terminal are answered in some 60 ms, in which the
    gateway does nothing else."""
    MESSAGES: ClassVar[tuple[int, int]] = (_ADJUST, _REQUEST)

    def __init__(self, host: Host, theirs: int, window: int, max_packet: int) -> None:
        self._host, self._theirs, self._window = host, number(theirs), window
        if max_packet < _MIN_PACKET_BYTES:
            raise Malformed("a packet is too small")
        self._max_data = min(max_packet, MAX_SENT_BYTES)
        self._shell: Shell | None = None
        self._has_terminal = False
        self._line = ""
        self._is_escaped = False
        self._pending: deque[tuple[bool, bytes]] = deque()
        self._pending_bytes = 0
        self._status: int | None = None
        self._is_over = False
        self._consumed = 0
        self.is_closed = False

    def take(self, kind: int, fields: Fields) -> Said:
        """A message's answer; `fields` are those after the channel's number. Raises `Malformed`."""
        name, data = _NAMES.get(kind, ""), b""
        payloads: list[bytes] = []
        if kind == _REQUEST:
            name, data, payloads = self._request(fields)
        elif kind == _ADJUST:
            self._window = min(self._window + fields.number(), _MAX_WINDOW)
        elif kind == _DATA:
            data = fields.text()
            if len(data) > self.PACKET_BYTES:
                raise Malformed("a packet is too large")
            payloads += self._received(len(data))
            if self._shell is not None and self._status is None:
                self._typed(data.decode("utf-8", "replace"))
        elif kind == _EXTENDED:
            fields.number()
            payloads += self._received(len(fields.text()))
        elif kind == _EOF:
            if self._shell is not None and self._status is None and not self._has_terminal:
                self._run_line(self._line)
                self._end(0)
        elif kind == _CLOSE:
            self.is_closed = True
            return Said(
                name=name, payloads=() if self._is_over else (bytes((_CLOSE,)) + self._theirs,)
            )
        return Said(name=name, data=data, payloads=(*payloads, *self._flushed()))

    # ---- requests

    def _request(self, fields: Fields) -> tuple[str, bytes, list[bytes]]:
        asked, wants_reply = fields.text(), fields.flag()
        is_free, data = self._shell is None, b""
        ok = asked in (b"env", b"window-change", b"signal") or (
            asked in (b"pty-req", b"shell", b"exec") and is_free
        )
        if ok and asked == b"pty-req":
            self._has_terminal = True
        elif ok and asked == b"shell":
            self._shell = Shell(self._host, "-rbash")
            if self._has_terminal:
                self._put(MOTD.format(name=self._host.name.partition(".")[0]))
                self._prompt()
        elif ok and asked == b"exec":
            data = fields.text()
            self._shell = Shell(self._host, "rbash: line 1")
            result = self._shell.run(data.decode("utf-8", "replace"))
            self._show(result)
            self._end(result.status)
        name = asked.decode("ascii", "replace")
        answer = bytes((_SUCCESS if ok else _FAILURE,)) + self._theirs
        return name, data, [answer] if wants_reply else []

    def _received(self, count: int) -> list[bytes]:
        """Give room again for what has been read."""
        self._consumed += count
        if self._consumed < self.WINDOW_BYTES // 2:
            return []
        said = bytes((_ADJUST,)) + self._theirs + number(self._consumed)
        self._consumed = 0
        return [said]

    # ---- input

    def _typed(self, typed: str) -> None:
        for char in typed:
            if self._status is not None:
                return
            if char == "\n" or (char == "\r" and self._has_terminal):
                if self._has_terminal:
                    self._put("\n")
                self._run_line(self._line)
            elif self._has_terminal and not char.isprintable():
                self._edited(char)
            elif self._is_escaped:  # a key such as an arrow: it moves nothing
                self._is_escaped = char in "[O;" or char.isdigit()
            elif len(self._line) < MAX_LINE_CHARS:
                self._line += char
                if self._has_terminal:
                    self._put(char)

    def _edited(self, char: str) -> None:
        if char in (_RUBOUT, _CTRL_H) and self._line:
            self._line = self._line[:-1]
            self._put("\b \b")
        elif char == _CTRL_U:
            self._put("\b \b" * len(self._line))
            self._line = ""
        elif char == _CTRL_C:
            self._line = ""
            self._put("^C\n")
            self._prompt()
        elif char == _CTRL_D and not self._line:
            self._put("logout\n")
            self._end(0)
        self._is_escaped = char == _ESCAPE

    def _run_line(self, line: str) -> None:
        self._line = ""
        if self._shell is None:
            return
        result = self._shell.run(line)
        self._show(result)
        if result.ends:
            if self._has_terminal:
                self._put("logout\n")
            self._end(result.status)
        elif self._has_terminal:
            self._prompt()

    # ---- output

    def _show(self, result: Result) -> None:
        self._put(result.output)
        self._put(result.errors, is_error=not self._has_terminal)

    def _prompt(self) -> None:
        self._put(f"{self._host.user}@{self._host.name.partition('.')[0]}:~$ ")

    def _put(self, shown: str, *, is_error: bool = False) -> None:
        if self._has_terminal:
            shown = shown.replace("\n", "\r\n")
        if shown:
            data = shown.encode("utf-8", "replace")
            self._pending.append((is_error, data))
            self._pending_bytes += len(data)
        if self._pending_bytes > MAX_PENDING_BYTES:
            raise Malformed("too much output waits")

    def _end(self, status: int) -> None:
        if self._status is None:
            self._status = status

    def _flushed(self) -> list[bytes]:
        """What the client has room for, and the end after all of it."""
        said = []
        while self._pending and self._window:
            is_error, data = self._pending.popleft()
            count = min(self._window, self._max_data, len(data))
            if count < len(data):
                self._pending.appendleft((is_error, data[count:]))
            self._window -= count
            self._pending_bytes -= count
            head = (
                bytes((_EXTENDED,)) + self._theirs + number(_STDERR)
                if is_error
                else bytes((_DATA,)) + self._theirs
            )
            said.append(head + text(data[:count]))
        if self._status is not None and not (self._pending or self._is_over):
            self._is_over = True
            status = text(b"exit-status") + b"\0" + number(self._status)
            said.append(bytes((_EOF,)) + self._theirs)
            said.append(bytes((_REQUEST,)) + self._theirs + status)
            said.append(bytes((_CLOSE,)) + self._theirs)
        return said
