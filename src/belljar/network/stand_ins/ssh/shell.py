"""A bastion host's restricted shell, and SSH's sessions (RFC 4254). It runs nothing. Pure."""

from __future__ import annotations

import posixpath
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Final, TypeAlias

from belljar.dataclass import dataclass, field
from belljar.network.stand_ins.ssh.wire import Fields, Malformed, number, text

MAX_LINE_CHARS: Final = 4095  # As a terminal's line has
MAX_WORDS: Final = 256
MAX_OUTPUT_CHARS: Final = 256 << 10  # Of one line; what would be more is left out
_KERNEL: Final = "6.1.0-28-amd64"
_BUILT: Final = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)"
_UID: Final = 1001
_SEPARATORS: Final = frozenset({";", "&&", "||", "|", "&"})
_NOT_FOUND: Final = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """`files`: absolute path → content."""

    name: str
    user: str
    files: Mapping[str, str] = field(repr=False)
    changed_s: float

    @property
    def home(self) -> str:
        """The user's."""
        return f"/home/{self.user}"


@dataclass(frozen=True, slots=True)
class Result:
    """`ends`: the shell is left."""

    output: str = ""
    errors: str = ""
    status: int = 0
    ends: bool = False


Command: TypeAlias = Callable[[Host, Sequence[str]], Result]


class Shell:
    """`name`: what its messages begin with."""

    def __init__(self, host: Host, name: str) -> None:
        self._host, self._name = host, name
        self._status = 0

    def run(self, line: str) -> Result:
        """A whole line. Any text is answered."""
        lexer = shlex.shlex(line[:MAX_LINE_CHARS], posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        try:
            words = list(islice(lexer, MAX_WORDS))
        except ValueError:  # a quote that isn't closed
            self._status = 2
            return self._error("unexpected EOF while looking for matching quote", status=2)
        output, errors = "", ""
        for joint, command, piped in _commands(words):
            if (joint == "&&" and self._status) or (joint == "||" and not self._status):
                continue
            result = self._simple(command, output if joint == "|" else "")
            self._status = result.status
            output = result.output if joint == "|" else output + result.output
            errors += result.errors
            if result.ends and not (piped or joint == "|"):
                return Result(output, errors, self._status, ends=True)
            if len(output) + len(errors) > MAX_OUTPUT_CHARS:
                break
        return Result(output[:MAX_OUTPUT_CHARS], errors, self._status)

    def _error(self, what: str, *, status: int = 1) -> Result:
        return Result(errors=f"{self._name}: {what}\n", status=status)

    def _simple(self, words: Sequence[str], given: str) -> Result:
        for at, word in enumerate(words):
            if word and set(word) <= set("<>&"):
                shown = "".join(words[at + 1 : at + 2]) or "newline"
                return self._error(f"{shown}: restricted: cannot redirect output")
        name, arguments = words[0], [self._expanded(word) for word in words[1:]]
        if "/" in name:
            return self._error(f"{name}: restricted: cannot specify `/' in command names")
        if name == "cd":
            return self._error("cd: restricted")
        if name == "cat" and not arguments:
            return Result(given)
        known = _COMMANDS.get(name)
        if known is None:
            return self._error(f"{name}: command not found", status=_NOT_FOUND)
        if name in ("exit", "logout"):
            is_number = bool(arguments) and arguments[0].isdecimal()
            return Result(status=int(arguments[0]) % 256 if is_number else self._status, ends=True)
        return known(self._host, arguments)

    def _expanded(self, word: str) -> str:
        host = self._host
        if word == "~" or word.startswith("~/"):
            word = host.home + word[1:]
        known = {"$HOME": host.home, "$USER": host.user, "$SHELL": "/bin/rbash"}
        return str(self._status) if word == "$?" else known.get(word, word)


def _commands(words: Sequence[str]) -> list[tuple[str, list[str], bool]]:
    """What is before a command, itself, and if it is piped."""
    commands: list[tuple[str, list[str], bool]] = []
    joint, command = ";", list[str]()
    for word in (*words, ";"):
        if word not in _SEPARATORS:
            command.append(word)
            continue
        if command:
            commands.append((joint, command, word == "|"))
        joint, command = word, []
    return commands


# ---- commands


def _uname(host: Host, arguments: Sequence[str]) -> Result:
    short = host.name.partition(".")[0]
    parts = {"s": "Linux", "n": short, "r": _KERNEL, "v": _BUILT, "m": "x86_64", "o": "GNU/Linux"}
    options = (word[1:] for word in arguments if word.startswith("-") and word[:2] != "--")
    asked = "".join(options) or "s"
    if "a" in asked or "--all" in arguments:
        asked = "".join(parts)
    return Result(" ".join(shown for letter, shown in parts.items() if letter in asked) + "\n")


def _place(host: Host, path: str) -> str:
    return posixpath.normpath(posixpath.join(host.home, path)).replace("//", "/")


def _cat(host: Host, arguments: Sequence[str]) -> Result:
    output, errors = "", ""
    for path in arguments:
        place = _place(host, path)
        if place in host.files:
            output += host.files[place]
        elif path != "-" and not path.startswith("--"):
            what = "Is a directory" if _entries(host, place) else "No such file or directory"
            errors += f"cat: {path}: {what}\n"
        if len(output) > MAX_OUTPUT_CHARS:
            break
    return Result(output, errors, 1 if errors else 0)


def _entries(host: Host, place: str) -> dict[str, str]:
    """Name → the file's path, or "" for a directory."""
    start = place.rstrip("/") + "/"
    inside = sorted(path.removeprefix(start) for path in host.files if path.startswith(start))
    return {rest.partition("/")[0]: "" if "/" in rest else start + rest for rest in inside}


def _ls(host: Host, arguments: Sequence[str]) -> Result:
    options = "".join(word[1:] for word in arguments if word.startswith("-") and len(word) > 1)
    paths = [word for word in arguments if not word.startswith("-")] or ["."]
    changed = time.strftime("%b %e %H:%M", time.gmtime(host.changed_s))
    output, errors = "", ""
    for path in paths:
        place = _place(host, path)
        if place in host.files:
            listed = {path: place}
        elif entries := _entries(host, place):
            shows_all = bool(set(options) & set("aA"))
            listed = {n: p for n, p in entries.items() if shows_all or n[0] != "."}
            output += f"{path}:\n" if len(paths) > 1 else ""
            if "a" in options:
                listed = {".": "", "..": "", **listed}
        else:
            errors += f"ls: cannot access '{path}': No such file or directory\n"
            continue
        for name, file in listed.items():
            if "l" in options:
                is_own = file.startswith(host.home) or not file
                owner = f"{host.user} {host.user}" if is_own else "root root"
                size = len(host.files[file].encode()) if file else 4096
                mode = "-rw-r----- 1" if file else "drwxr-x--- 2"
                output += f"{mode} {owner} {size:>6} {changed} "
            output += f"{name}\n"
        if len(output) > MAX_OUTPUT_CHARS:
            break
    return Result(output, errors, 2 if errors else 0)


def _fixed(text: str) -> Command:
    """Prints a text with `{user}` and `{home}` filled in."""
    return lambda host, _arguments: Result(text.format(user=host.user, home=host.home))


_COMMANDS: Final[Mapping[str, Command]] = {
    "cat": _cat,
    "echo": lambda _, words: Result(
        " ".join(words[1:]) if words[:1] == ["-n"] else " ".join(words) + "\n"
    ),
    "exit": _fixed(""),
    "hostname": lambda host, words: Result(
        f"{host.name if '-f' in words else host.name.partition('.')[0]}\n"
    ),
    "id": _fixed(f"uid={_UID}({{user}}) gid={_UID}({{user}}) groups={_UID}({{user}})\n"),
    "logout": _fixed(""),
    "ls": _ls,
    "pwd": _fixed("{home}\n"),
    "true": _fixed(""),
    "uname": _uname,
    "whoami": _fixed("{user}\n"),
}
MOTD: Final = (
    f"Linux {{name}} {_KERNEL} {_BUILT} x86_64\n\n"
    "Debian GNU/Linux comes with ABSOLUTELY NO WARRANTY, to the extent\npermitted by applicable "
    "law.\n"
)


# Of output for which the client has no room; a session with more is ended
MAX_PENDING_BYTES: Final = 1 << 20
MAX_SENT_BYTES: Final = 32 << 10  # Of output in one packet
_ADJUST, _DATA, _EXTENDED, _EOF, _CLOSE, _REQUEST, _SUCCESS, _FAILURE = range(93, 101)
_CHANNEL_NAMES: Final = {
    _ADJUST: "window",
    _DATA: "input",
    _EXTENDED: "input",
    _EOF: "eof",
    _CLOSE: "close",
}
_STDERR: Final = 1
_MIN_PACKET_BYTES: Final = 64
_MAX_WINDOW: Final = 0xFFFFFFFF
_RUBOUT, _CTRL_C, _CTRL_D, _CTRL_H, _CTRL_U, _ESCAPE = "\x7f\x03\x04\x08\x15\x1b"


@dataclass(frozen=True, slots=True)
class ChannelReply:
    """One message's name, its data, and the answer."""

    name: str
    data: bytes = b""
    payloads: tuple[bytes, ...] = ()


class Channel:
    """One session."""

    WINDOW_BYTES: ClassVar[int] = 2 << 20
    # Of input at once: 4,096 empty lines take some 60 ms, in which the gateway waits
    PACKET_BYTES: ClassVar[int] = 4 << 10
    MESSAGES: ClassVar[tuple[int, int]] = (_ADJUST, _REQUEST)

    def __init__(self, host: Host, theirs: int, window: int, max_packet: int) -> None:
        self._host, self._theirs, self._window = host, number(theirs), window
        if max_packet < _MIN_PACKET_BYTES:
            raise Malformed("a packet is too small")
        self._max_data = min(max_packet, MAX_SENT_BYTES)
        self._shell: Shell | None = None
        self._line = ""
        self._has_terminal = self._is_escaped = self._is_over = self.is_closed = False
        self._pending: deque[tuple[bool, bytes]] = deque()
        self._pending_bytes = self._consumed = 0
        self._status: int | None = None

    def take(self, kind: int, fields: Fields) -> ChannelReply:
        """`fields`: those after the channel's number. Raises `Malformed`."""
        name, data = _CHANNEL_NAMES.get(kind, ""), b""
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
            return ChannelReply(name, b"", () if self._is_over else (self._message(_CLOSE),))
        return ChannelReply(name, data, (*payloads, *self._flushed()))

    def _message(self, kind: int, *parts: bytes) -> bytes:
        return bytes((kind,)) + self._theirs + b"".join(parts)

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
        answer = self._message(_SUCCESS if ok else _FAILURE)
        return name, data, [answer] if wants_reply else []

    def _received(self, count: int) -> list[bytes]:
        self._consumed += count
        if self._consumed < self.WINDOW_BYTES // 2:
            return []
        consumed, self._consumed = self._consumed, 0
        return [self._message(_ADJUST, number(consumed))]

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
        """What the client has room for, then the end."""
        messages = []
        while self._pending and self._window:
            is_error, data = self._pending.popleft()
            count = min(self._window, self._max_data, len(data))
            if count < len(data):
                self._pending.appendleft((is_error, data[count:]))
            self._window -= count
            self._pending_bytes -= count
            sent = text(data[:count])
            if is_error:
                messages.append(self._message(_EXTENDED, number(_STDERR), sent))
            else:
                messages.append(self._message(_DATA, sent))
        if self._status is not None and not (self._pending or self._is_over):
            self._is_over = True
            status = (text(b"exit-status"), b"\0", number(self._status))
            ends = (self._message(_REQUEST, *status), self._message(_CLOSE))
            messages += (self._message(_EOF), *ends)
        return messages
