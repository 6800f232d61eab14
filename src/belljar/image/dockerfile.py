"""A Dockerfile's text as buildah 1.28 can read it. Pure.

Variables, flags and here-documents that buildah lacks are resolved here. Sources: the Dockerfile
reference; BuildKit's here-documents (a lone one is the shell's script, or a program if it begins
with `#!`).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from belljar.image.config import ImageConfig
from belljar.image.parser import MAX_BYTES, MAX_LINE_BYTES, DockerfileError, Instruction
from belljar.image.stages import (
    TRUE,
    Bases,
    BuildStage,
    at_line,
    base_images,
    declare,
    flags_of,
    mount_options,
)
from belljar.image.variables import Expander

__all__ = ["MAX_BYTES", "Bases", "Buildable", "DockerfileError", "base_images", "make_buildable"]

# An empty directory in the context of here-documents.
EMPTY: Final = "empty"
_SHELL: Final = ("/bin/sh", "-c")
# A descriptor, `<<`, a dash that strips tabs, and a name, which quotes make literal.
_OPENER: Final = re.compile(r"\d*<<(-?)([^<]+)")
_LONE: Final = re.compile(r"\d*<<(-?)(?:[^\s<'\"]+|'[^'<]+'|\"[^\"<]+\")")
_FILE_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
# What needs no quotes.
_PLAIN: Final = re.compile(r"[\w./:@%+=,~*?-]+", re.ASCII)
_OPTION: Final = re.compile(r"[^\s,\"'\\$`]*")
# An escaped `[` is no such thing in buildah; `**` is `*` in Docker, any depth in buildah.
_ODD_PATTERN: Final = re.compile(r"\[\[|\\|\*\*")
_REMOTE: Final = re.compile(r"https?://|git@|git://|ssh://")
_TABS: Final = re.compile(r"^\t+", re.MULTILINE)
# Of a step: its network is the build's own.
_HARMLESS: Final = {"network=default", "network=none", "network=host", "security=sandbox"}
_PROGRAMS: Final = "/dev/pipes"  # Where BuildKit has them, too
_ROOT: Final = re.compile("(root|0)(:(root|0))?")
# Of each kind of mount, beside `type` and `target`.
_MOUNTS: Final = {
    "bind": {"source", "readonly"},
    "cache": {"source", "readonly", "id", "sharing", "mode", "uid", "gid"},
    "tmpfs": {"size"},
    "secret": {"source", "id", "required", "env", "mode", "uid", "gid"},
    "ssh": {"id", "required", "mode", "uid", "gid"},
}


@dataclass(frozen=True, slots=True)
class HeredocFile:
    """A file in the context of here-documents."""

    path: str
    text: str
    mode: int


@dataclass(slots=True, kw_only=True)
class Buildable:
    """A Dockerfile for buildah; the context `heredoc_context` holds `files`.

    `volumes`: of the result; buildah would discard what later steps write there.
    `step_users`: the users that its RUN steps run as.
    """

    heredoc_context: str
    lines: list[str] = field(default_factory=list)
    files: list[HeredocFile] = field(default_factory=list)
    volumes: tuple[str, ...] = ()
    step_users: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        """The whole file, for buildah."""
        return "".join(f"{line}\n" for line in self.lines)


def make_buildable(
    bases: Bases, ids: Mapping[str, str], configs: Mapping[str, ImageConfig]
) -> Buildable:
    """The file for buildah, where each FROM names its image by its id in buildah's storage.

    `configs`: of the base images; the environment of another is not known. Raises
    `DockerfileError`.
    """
    made, ended = Buildable(heredoc_context=bases.context), dict[str, _State]()
    expander = Expander()
    for stage in bases.stages:
        base = stage.base
        if isinstance(base, BuildStage):
            parent = ended[base.name]
            state = replace(parent, env=dict(parent.env), kept=dict(parent.kept), args={}, dirs={})
            source = str(base)
        else:
            if base in configs and configs[base].on_build:
                raise DockerfileError(f"its base {base} has instructions of ONBUILD")
            parent, source = _State(), ids.get(base, base)
            config = configs.get(base, ImageConfig())
            state = _State(
                env=dict(config.env),
                kept=dict(config.env),
                cwd=config.workdir,
                user=config.user,
                volumes=config.volumes,
                shell=config.shell or _SHELL,
                is_known=base in configs or base == "scratch",
            )
        translator = _Translator(stage, bases, state, expander, made)
        translator.emit(f"FROM {source} AS {stage.name}")
        for name, value in parent.args.items():  # a stage inherits those of its base
            translator.declare(name, value)
        for item in stage.items:
            with at_line(item.line):
                translator.take(item)
        translator.make_directories(by_next=stage is bases.stages[-1])
        for name in sorted(state.args.keys() & state.kept.keys()):
            translator.emit(f"ENV {name}={_word(state.kept[name])}")
        ended[stage.name], made.volumes = state, state.volumes
    return made


@dataclass(slots=True, kw_only=True)
class _State:
    """A stage's: `kept` stays in the image, `args` end with the stage, `env` is both.

    `dirs`: directories of WORKDIR that no line makes yet, and their owners.
    """

    env: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    dirs: dict[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    cwd: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = _SHELL
    is_known: bool = True


class _Translator:
    """Writes each instruction as buildah reads it, with nothing left to fill in."""

    def __init__(
        self, stage: BuildStage, bases: Bases, state: _State, expander: Expander, made: Buildable
    ) -> None:
        self._stage, self._bases, self._state, self._made = stage, bases, state, made
        self._expander, self._expand, self._number = expander, expander.expand, 0
        expander.env, expander.is_lenient = state.env, not state.is_known

    def emit(self, line: str) -> None:
        """Raises `DockerfileError` for what is no line of a Dockerfile."""
        if "\n" in line or line.endswith("\\"):
            raise DockerfileError("a value has a line break, or ends with a backslash")
        if len(line.encode()) > MAX_LINE_BYTES:
            raise DockerfileError(f"it has more than {MAX_LINE_BYTES:,} bytes: COPY a file instead")
        self._expander.charge(len(line))
        self._made.lines.append(line)

    def declare(self, name: str, value: str) -> None:
        """An argument: an ENV beats it in buildah, in BuildKit the later one counts."""
        self._state.env[name] = self._state.args[name] = value
        self.emit(f"{'ENV' if name in self._state.kept else 'ARG'} {name}={_word(value)}")

    def take(self, item: Instruction) -> None:
        """Translate an instruction. Raises `DockerfileError`."""
        word, values, state = item.word, item.values, self._state
        flags, self._number = flags_of(item), item.line
        if not values and word not in {"CMD", "ENTRYPOINT"}:
            raise DockerfileError(f"{word} needs an argument")
        if word in {"USER", "STOPSIGNAL", "WORKDIR", "VOLUME", "ENV", "LABEL", "EXPOSE"}:
            values = tuple(map(self._expand, values))
        match word:
            case "RUN":
                self._run(item, flags)
            case "COPY" | "ADD":
                self._copy(item, flags)
            case "HEALTHCHECK":
                self._health(item, dict(flags))
            case "ARG":
                args, known = self._bases.args, self._bases.known
                for name, value in declare(item, args, known, self._expand):
                    self.declare(name, value)
            case "ENV":
                for name, value in zip(values[::2], values[1::2], strict=True):
                    if not re.fullmatch(r"[^\s\"'\\$=]+", name):
                        raise DockerfileError(f"ENV {name} has no plain name")
                    state.args.pop(name, None)
                    state.env[name] = state.kept[name] = value
                    self.emit(f"ENV {name}={_word(value)}")
            case "WORKDIR":
                state.cwd = self._below(values[0])
                if "\n" in state.cwd or not _OPTION.fullmatch(state.user):
                    raise DockerfileError("it, or its USER, has a line break, space or quote")
                state.dirs.setdefault(state.cwd, state.user)
            case "USER" | "STOPSIGNAL":
                state.user = values[0] if word == "USER" else state.user
                self.emit(f"{word} {_word(values[0])}")
            case "VOLUME":
                if not all(map(plain, values)) or "\n" in "".join(values):
                    raise DockerfileError("VOLUME needs paths below /, without a line break")
                state.volumes += tuple(f"/{plain(value)}" for value in values)
            case "CMD" | "ENTRYPOINT":
                program = values if item.is_json or not values else (*state.shell, *values)
                self.emit(f"{word} {json.dumps(program)}")
            case "SHELL" if item.is_json:
                state.shell = values
                self.emit(f"SHELL {json.dumps(values)}")
            case "LABEL" | "EXPOSE" | "MAINTAINER":
                pass  # without effect in a cell
            case _:
                raise DockerfileError(f"it can't be read: {item.text[:80]}")

    def make_directories(self, *, by_next: bool) -> None:
        """Make each directory of a WORKDIR as its user's, as BuildKit does.

        `by_next`: what follows makes the last one, as root's.
        """
        state, dirs = self._state, self._state.dirs
        for path, below in zip(dirs, [*dirs, ""][1:], strict=False):
            user, is_root = dirs[path], _ROOT.fullmatch(dirs[path]) is not None
            is_parent = below.startswith(f"{path}/") and dirs[below] == user  # made with it
            if path == "/" or is_parent or (is_root and by_next and path == state.cwd):
                continue
            owner = "" if is_root else f"--chown={f'{user}:{user}' if user.isdigit() else user} "
            place = _words((EMPTY, f"{path}/"))
            self.emit(f"COPY {owner}--from={self._bases.context} {place}")
        if dirs:
            self.emit(f"WORKDIR {_word(state.cwd)}")
            dirs.clear()

    def _below(self, path: str) -> str:
        return "/" + plain(posixpath.join(self._state.cwd, path))

    def _run(self, item: Instruction, given: list[tuple[str, str]]) -> None:
        self.make_directories(by_next=True)
        flags, command = "", " ".join(item.values)
        self._made.step_users.add(self._state.user)
        for name, value in given:
            if name == "mount":
                flags += self._mount(value)
            elif f"{name}={value}" not in _HARMLESS:
                raise DockerfileError(f"RUN can't have --{name}={value} here")
        lone = _LONE.fullmatch(command) if len(item.heredocs) == 1 else None
        script = command + "".join(f"\n{body}{name}" for name, body in item.heredocs)
        if lone:
            name, body = item.heredocs[0]
            script = _TABS.sub("", body) if lone[1] else body
            if script.startswith("#!"):
                self._add_file(name, script, 0o755)
                source = f"from={self._bases.context},source=/{self._number}"
                mount = f"--mount=type=bind,{source},target={_PROGRAMS}"
                self.emit(f"RUN {flags}{mount} {json.dumps([f'{_PROGRAMS}/{name}'])}")
                return
        if item.is_json:
            script = json.dumps(item.values)
        elif item.heredocs or script.startswith(("[", "--")) or script.endswith("\\"):
            script = json.dumps([*self._state.shell, script])
        self.emit(f"RUN {flags}{script}")

    def _add_file(self, name: str, text: str, mode: int) -> str:
        if not _FILE_NAME.fullmatch(name):
            raise DockerfileError(f"the here-document {name!r} has no plain word as its name")
        self._made.files.append(HeredocFile(f"{self._number}/{name}", text, mode))
        return f"{self._number}/{name}"

    def _mount(self, text: str) -> str:
        """The flag for buildah, or nothing for an optional secret: none is given here."""
        given = mount_options(text)
        source = str(self._stage.source(given.pop("from", "")))
        found = {key: self._expand(value) for key, value in given.items()}
        kind, target = found.pop("type", "bind"), found.pop("target", "")
        if wrong := found.keys() - _MOUNTS.get(kind, set()):
            raise DockerfileError(f"--mount={text} is not known: {kind}, {min(wrong)}")
        if kind in {"secret", "ssh"}:
            if found.get("required", "").lower() in TRUE:
                name = found.get("id", target or "default")
                raise DockerfileError(f"--mount={text}: the {kind} {name} is required, not given")
            return ""
        path = self._below(target)
        if kind not in _MOUNTS or path == "/" or not (target or kind == "bind"):
            raise DockerfileError(f"--mount={text} has no known type, or no target below /")
        is_fixed = found.pop("readonly", str(kind == "bind")).lower() in TRUE
        options = {"type": kind, "target": path, "from": source, **found, "sharing": "", "size": ""}
        words = [f"{key}={value}" for key, value in options.items() if value]
        if not all(map(_OPTION.fullmatch, words)):
            raise DockerfileError(f"--mount={text} has a space, comma or quote in a value")
        words += ["ro"] if is_fixed else ["rw"] if kind == "bind" else []
        return f"--mount={','.join(words)} "

    def _copy(self, item: Instruction, given: list[tuple[str, str]]) -> None:
        word, values = item.word, item.values
        flags = {name: value if name == "from" else self._expand(value) for name, value in given}
        chmod, chown = flags.get("chmod", ""), flags.get("chown", "")
        if not re.fullmatch("[0-7]{0,4}", chmod) or not _OPTION.fullmatch(chown):
            raise DockerfileError(f"{word} can't have these flags: {' '.join(item.flags)}")
        openers = [each for each in values if item.heredocs and _OPENER.fullmatch(each)]
        if len(values) < 2 or len(openers) != len(item.heredocs) or values[-1] in openers:
            raise DockerfileError(f"{word} needs sources and a destination")
        sources = tuple(self._expand(value) for value in values[:-1] if value not in openers)
        destination = self._expand(values[-1])
        if openers and len(values) > 2 and not f"/{destination}".endswith(("/", "/.")):
            raise DockerfileError(f"the destination of files must end with /: {destination}")
        is_inside = not chown and not destination.startswith("/") and ".." not in destination
        self.make_directories(by_next=is_inside)
        source = str(self._stage.source(flags.get("from", "")))
        if source and openers:
            raise DockerfileError(f"{word} of another source can't have here-documents")
        is_remote = word == "ADD" and any(map(_REMOTE.match, sources))
        if not is_remote and any(map(_ODD_PATTERN.search, sources)):
            raise DockerfileError(f"{word} can't have `**`, `\\\\` or `[[` in a source")
        options = f"--chown={chown} " if chown else ""
        options += f"--chmod={chmod} " if chmod else ""
        if sources:
            origin = f"--from={source} " if source else ""
            self.emit(f"{word} {options}{origin}{_words((*sources, destination))}")
        for opener, (name, body) in zip(openers, item.heredocs, strict=True):
            text = _TABS.sub("", body) if opener.partition("<<")[2].startswith("-") else body
            if opener.endswith(("<<" + name, "<<-" + name)):  # an unquoted name
                text = self._expander.expand_document(text)
            path = self._add_file(name, text, 0o644)
            place = _words((path, destination))
            self.emit(f"COPY {options}--from={self._bases.context} {place}")

    def _health(self, item: Instruction, flags: dict[str, str]) -> None:
        kind, *test = item.values
        flags.pop("start-interval", None)  # buildah 1.28 has none; a cell asks each second anyway
        if not all(map(_OPTION.fullmatch, flags.values())):
            raise DockerfileError(f"HEALTHCHECK has no such flags: {' '.join(item.flags)}")
        if kind.upper() not in {"NONE", "CMD"} or (kind.upper() == "CMD") != bool(test):
            raise DockerfileError("HEALTHCHECK needs NONE, or CMD and a command")
        options = "".join(f"--{name}={value} " for name, value in flags.items())
        command = json.dumps(test) if item.is_json else " ".join(test)
        self.emit(f"HEALTHCHECK {options}{kind.upper()} {command}".rstrip(" "))


def plain(path: str) -> str:
    """Return a path's plain parts: none that is empty, `.` or `..`."""
    return posixpath.normpath("/" + path).strip("/")


def _word(value: str) -> str:
    """A word that buildah takes as it is."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def _words(values: Iterable[str]) -> str:
    return json.dumps([_word(value) for value in values])
