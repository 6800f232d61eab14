"""What a restricted shell on a bastion host answers. Pure: a line in, its output out.

It runs nothing: each command is a function of the host's made-up files.
"""

from __future__ import annotations

import posixpath
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Final

from belljar.dataclass import dataclass

MAX_LINE_CHARS: Final = 4095
"""As a terminal's line has."""
MAX_WORDS: Final = 256
MAX_OUTPUT_CHARS: Final = 256 << 10
"""Of one line; what would be more is left out."""
_KERNEL: Final = "6.1.0-28-amd64"
_BUILT: Final = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)"
_UID: Final = 1001
_SEPARATORS: Final = frozenset({";", "&&", "||", "|", "&"})
_NOT_FOUND: Final = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What all sessions see. `files`: absolute path → content."""

    name: str
    user: str
    files: Mapping[str, str] = field(repr=False)
    changed_s: float

    @property
    def home(self) -> str:
        """The user's."""
        return f"/home/{self.user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one line or command. `ends`: the shell is left."""

    output: str = ""
    errors: str = ""
    status: int = 0
    ends: bool = False


class Shell:
    """One shell. `name`: what its messages begin with."""

    def __init__(self, host: Host, name: str) -> None:
        self._host, self._name = host, name
        self._status = 0

    def run(self, line: str) -> Result:
        """A whole line. Any text is answered."""
        try:
            words = _words(line[:MAX_LINE_CHARS])
        except ValueError:
            self._status = 2
            return Result(
                errors=self._said("unexpected EOF while looking for matching quote"), status=2
            )
        output, errors = "", ""
        for joint, command, piped in _commands(words):
            if (joint == "&&" and self._status) or (joint == "||" and not self._status):
                continue
            result = self._simple(command, output if joint == "|" else "")
            self._status = result.status
            output = result.output if joint == "|" else output + result.output
            errors += result.errors
            if result.ends and not (piped or joint == "|"):
                return Result(output=output, errors=errors, status=self._status, ends=True)
            if len(output) + len(errors) > MAX_OUTPUT_CHARS:
                break
        return Result(output=output[:MAX_OUTPUT_CHARS], errors=errors, status=self._status)

    def _said(self, what: str) -> str:
        return f"{self._name}: {what}\n"

    def _simple(self, words: Sequence[str], given: str) -> Result:
        target = next(
            (
                words[at + 1 : at + 2]
                for at, word in enumerate(words)
                if word and set(word) <= set("<>&")
            ),
            None,
        )
        if target is not None:
            shown = "".join(target) or "newline"
            return Result(
                errors=self._said(f"{shown}: restricted: cannot redirect output"), status=1
            )
        name, arguments = words[0], [self._expanded(word) for word in words[1:]]
        if "/" in name:
            return Result(
                errors=self._said(f"{name}: restricted: cannot specify `/' in command names"),
                status=1,
            )
        if name == "cd":
            return Result(errors=self._said("cd: restricted"), status=1)
        if name == "cat" and not arguments:
            return Result(output=given)
        known = _COMMANDS.get(name)
        if known is None:
            return Result(errors=self._said(f"{name}: command not found"), status=_NOT_FOUND)
        if name in ("exit", "logout"):
            status = (
                int(arguments[0]) % 256 if arguments and arguments[0].isdecimal() else self._status
            )
            return Result(status=status, ends=True)
        return known(self._host, arguments)

    def _expanded(self, word: str) -> str:
        host = self._host
        if word == "~" or word.startswith("~/"):
            word = host.home + word[1:]
        known = {
            "$HOME": host.home,
            "$USER": host.user,
            "$?": str(self._status),
            "$SHELL": "/bin/rbash",
        }
        return known.get(word, word)


def _words(line: str) -> list[str]:
    """Raises `ValueError` for a quote that isn't closed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words = []
    for word in lexer:
        words.append(word)
        if len(words) == MAX_WORDS:
            break
    return words


def _commands(words: Sequence[str]) -> list[tuple[str, list[str], bool]]:
    """What stands before each command, the command, and whether its output goes to another."""
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


def _id(host: Host, arguments: Sequence[str]) -> Result:  # noqa: ARG001 - every command's signature
    user = host.user
    return Result(output=f"uid={_UID}({user}) gid={_UID}({user}) groups={_UID}({user})\n")


def _whoami(host: Host, arguments: Sequence[str]) -> Result:  # noqa: ARG001
    return Result(output=f"{host.user}\n")


def _hostname(host: Host, arguments: Sequence[str]) -> Result:
    return Result(output=f"{host.name if '-f' in arguments else host.name.partition('.')[0]}\n")


def _uname(host: Host, arguments: Sequence[str]) -> Result:
    short = host.name.partition(".")[0]
    parts = {"s": "Linux", "n": short, "r": _KERNEL, "v": _BUILT, "m": "x86_64", "o": "GNU/Linux"}
    asked = (
        "".join(
            word[1:] for word in arguments if word.startswith("-") and not word.startswith("--")
        )
        or "s"
    )
    if "a" in asked or "--all" in arguments:
        asked = "".join(parts)
    return Result(
        output=" ".join(shown for letter, shown in parts.items() if letter in asked) + "\n"
    )


def _pwd(host: Host, arguments: Sequence[str]) -> Result:  # noqa: ARG001
    return Result(output=f"{host.home}\n")


def _echo(host: Host, arguments: Sequence[str]) -> Result:  # noqa: ARG001
    ends = "" if arguments[:1] == ["-n"] else "\n"
    return Result(output=" ".join(arguments[1:] if not ends else arguments) + ends)


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
    return Result(output=output, errors=errors, status=1 if errors else 0)


def _entries(host: Host, place: str) -> dict[str, str]:
    """Names in a directory → the file's path, or "" for a directory. Empty: there is none."""
    beginning = place.rstrip("/") + "/"
    inside = [path.removeprefix(beginning) for path in host.files if path.startswith(beginning)]
    return {
        rest.partition("/")[0]: "" if "/" in rest else beginning + rest for rest in sorted(inside)
    }


def _ls(host: Host, arguments: Sequence[str]) -> Result:
    options = "".join(word[1:] for word in arguments if word.startswith("-") and len(word) > 1)
    paths = [word for word in arguments if not word.startswith("-")] or ["."]
    output, errors = "", ""
    for path in paths:
        place = _place(host, path)
        if place in host.files:
            listed = {path: place}
        elif entries := _entries(host, place):
            listed = (
                entries
                if set(options) & set("aA")
                else {n: p for n, p in entries.items() if n[0] != "."}
            )
            output += f"{path}:\n" if len(paths) > 1 else ""
            if "a" in options:
                listed = {".": "", "..": "", **listed}
        else:
            errors += f"ls: cannot access '{path}': No such file or directory\n"
            continue
        output += "".join(
            f"{_long(host, n, p) if 'l' in options else n}\n" for n, p in listed.items()
        )
        if len(output) > MAX_OUTPUT_CHARS:
            break
    return Result(output=output, errors=errors, status=2 if errors else 0)


def _long(host: Host, name: str, path: str) -> str:
    owner = f"{host.user} {host.user}" if path.startswith(host.home) or not path else "root root"
    mode, size = ("-rw-r-----", len(host.files[path].encode())) if path else ("drwxr-x---", 4096)
    when = time.strftime("%b %e %H:%M", time.gmtime(host.changed_s))
    return f"{mode} {1 if path else 2} {owner} {size:>6} {when} {name}"


def _nothing(host: Host, arguments: Sequence[str]) -> Result:  # noqa: ARG001
    return Result()


_COMMANDS: Final[Mapping[str, Callable[[Host, Sequence[str]], Result]]] = {
    "cat": _cat,
    "echo": _echo,
    "exit": _nothing,
    "hostname": _hostname,
    "id": _id,
    "logout": _nothing,
    "ls": _ls,
    "pwd": _pwd,
    "true": _nothing,
    "uname": _uname,
    "whoami": _whoami,
}
MOTD: Final = (
    f"Linux {{name}} {_KERNEL} {_BUILT} x86_64\n\n"
    "Debian GNU/Linux comes with ABSOLUTELY NO WARRANTY, to the extent\npermitted by applicable "
    "law.\n"
)
