"""A Dockerfile's text as buildah 1.28 can read it. Pure.

Variables, flags and here-documents that buildah lacks are resolved here. Sources: the Dockerfile
reference; BuildKit's here-documents (a lone one is the shell's script, or a program if it begins
with `#!`).
"""

from __future__ import annotations

import json
import posixpath
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from belljar.image.config import ImageConfig
from belljar.image.copies import Copy, symbolic_chmod
from belljar.image.parser import MAX_BYTES, MAX_LINE_BYTES, DockerfileError, Instruction
from belljar.image.stages import (
    NAME,
    Bases,
    Stage,
    at_line,
    base_images,
    declare,
    flags_of,
    mount_options,
)
from belljar.image.variables import Budget, Expander

__all__ = ["MAX_BYTES", "Bases", "Buildable", "DockerfileError", "base_images", "make_buildable"]

_SHELL: Final = ("/bin/sh", "-c")
_OPENER: Final = re.compile(r"\d*<<(-?)([^<]+)")
_LONE: Final = re.compile(r"\d*<<(-?)(?:[^\s<'\"]+|'[^'<]+'|\"[^\"<]+\")")
_FILE_PLAIN: Final = re.compile(r"[\w./:@%+=,~*?-]+", re.ASCII)
_FILE_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_PLAIN: Final = re.compile(r"[\w./:@%+=,~*?-]+", re.ASCII)
_OPTION: Final = re.compile(r"[^\s,\"'\\$`]+")
_REMOTE: Final = re.compile(r"https?://|git@|git://|ssh://")
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_NS: Final = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "m": 6e10, "h": 36e11}
_TABS: Final = re.compile(r"^\t+", re.MULTILINE)
_PROGRAMS: Final = "/dev/pipes"
_MOUNTS: Final = {
    "bind": {"source", "from", "readonly"},
    "cache": {"source", "from", "readonly", "id", "sharing", "mode", "uid", "gid"},
    "tmpfs": {"size"},
    "secret": {"source", "id", "required", "env", "mode", "uid", "gid"},
    "ssh": {"id", "required", "mode", "uid", "gid"},
}
_TRUE: Final = frozenset({"true", "1", "t"})
_KEPT_FLAGS: Final = ("--link", "--chown", "--from")


@dataclass(frozen=True, slots=True)
class HeredocFile:
    """A file in the context of here-documents."""

    path: str
    text: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildable:
    """A Dockerfile for buildah; the context `heredoc_context` holds `files` and `copies`.

    `start_interval_ns`: of the result's health check, which buildah 1.28 doesn't know.
    `step_users`: the users that its RUN steps run as.
    """

    text: str
    heredoc_context: str
    files: tuple[HeredocFile, ...]
    copies: tuple[Copy, ...]
    start_interval_ns: int
    step_users: frozenset[str]


def make_buildable(
    bases: Bases, ids: Mapping[str, str], configs: Mapping[str, ImageConfig]
) -> Buildable:
    """The file for buildah, where each FROM names its image by its id in buildah's storage.

    `configs`: of the base images; the environment of another is not known. Raises
    `DockerfileError`.
    """
    translator = _Translator(bases, ids, configs)
    for stage in bases.stages:
        translator.take(stage)
    return Buildable(
        text="\n".join(translator.lines) + "\n",
        heredoc_context=bases.context,
        files=tuple(translator.files),
        copies=tuple(translator.copies),
        start_interval_ns=translator.state.start_interval_ns,
        step_users=frozenset(translator.step_users),
    )


@dataclass(slots=True, kw_only=True)
class _State:
    """A stage's: `image_env` stays in the image, `args` end with the stage."""

    image_env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = _SHELL
    start_interval_ns: int = 0
    is_lenient: bool = False


class _Translator:
    """Writes each instruction as buildah reads it, with nothing left to fill in."""

    def __init__(
        self, bases: Bases, ids: Mapping[str, str], configs: Mapping[str, ImageConfig]
    ) -> None:
        self.lines: list[str] = []
        self.files: list[HeredocFile] = []
        self.copies: list[Copy] = []
        self.step_users: set[str] = set()
        self.state = _State()
        self._bases, self._ids, self._configs = bases, ids, configs
        self._ended, self._budget = dict[str, _State](), Budget()

    def take(self, stage: Stage) -> None:
        """Translate a stage; the stages that it needs were translated before."""
        base, config = stage.base, None
        if isinstance(base, Stage):
            ended = self._ended[base.name]
            args, image_env = dict(ended.args), dict(ended.image_env)
            self.state = replace(ended, args={}, image_env=image_env)
        else:
            args, config = {}, self._configs.get(base)
            self.state = _State(is_lenient=config is None and base != "scratch")
        if config is not None:
            check = config.healthcheck
            self.state.image_env, self.state.cwd = dict(config.env), config.workdir
            self.state.shell, self.state.user = config.shell or _SHELL, config.user
            self.state.start_interval_ns = check.start_interval_ns if check else 0
        source = base.name if isinstance(base, Stage) else self._ids.get(base, base)
        self._emit(f"FROM {source} AS {stage.name}")
        for name, value in args.items():  # a stage inherits those of the stage it starts from
            self._arg(name, value)
        for item in stage.items:
            with at_line(item.line):
                self._take(item, stage)
        for name in self.state.args:
            if name in self.state.image_env:
                self._emit(f"ENV {name}={_word(self.state.image_env[name])}")
        self._ended[stage.name] = self.state

    def _emit(self, line: str) -> None:
        if "\n" in line or line.endswith("\\"):
            raise DockerfileError("a value has a line break, or ends with a backslash")
        if len(line.encode()) > MAX_LINE_BYTES:
            raise DockerfileError(f"it has more than {MAX_LINE_BYTES:,} bytes: COPY a file instead")
        self.lines.append(line)

    def _expand(self, text: str, *, escape: str = "", has_quotes: bool = True) -> str:
        return Expander(
            env=self.state.image_env | self.state.args,
            escape=escape or self._bases.escape,
            has_quotes=has_quotes,
            is_lenient=self.state.is_lenient,
            budget=self._budget,
        ).expand(text)

    def _arg(self, name: str, value: str) -> None:
        # An ENV beats an ARG in buildah; in BuildKit the later one counts until its stage ends.
        word = "ENV" if name in self.state.image_env else "ARG"
        self.state.args[name] = value
        self._emit(f"{word} {name}={_word(value)}")

    def _take(self, item: Instruction, stage: Stage) -> None:
        word, values, state = item.word, item.values, self.state
        if not values and not item.is_json and word not in {"CMD", "ENTRYPOINT"}:
            raise DockerfileError(f"{word} needs an argument")
        match word:
            case "RUN":
                self._run(item, stage)
            case "COPY" | "ADD":
                self._copy(item, stage)
            case "HEALTHCHECK":
                self._health(item)
            case "ARG":
                known = state.image_env | state.args
                args, inherited = self._bases.args, self._bases.known
                for name in declare(item, args, known, inherited, self._expand):
                    self._arg(name, known[name])
            case "ENV":
                filled = [self._expand(value) for value in values]
                for name, value in zip(filled[::2], filled[1::2], strict=True):
                    if not NAME.fullmatch(name):
                        raise DockerfileError(f"ENV {name} has no plain name")
                    state.args.pop(name, None)
                    state.image_env[name] = value
                    self._emit(f"ENV {name}={_word(value)}")
            case "WORKDIR":
                path = posixpath.join(state.cwd, self._expand(values[0]))
                state.cwd = "/" + posixpath.normpath(path).strip("/")
                self._emit(f"WORKDIR {_word(state.cwd)}")
            case "USER" | "STOPSIGNAL":
                value = self._expand(values[0])
                state.user = value if word == "USER" else state.user
                self._emit(f"{word} {_word(value)}")
            case "VOLUME":
                self._emit(f"VOLUME {_words(self._expand(value) for value in values)}")
            case "CMD" | "ENTRYPOINT":
                program = values if item.is_json or not values else (*state.shell, *values)
                self._emit(f"{word} {json.dumps(program)}")
            case "SHELL":
                if not item.is_json or not values:
                    raise DockerfileError(f"SHELL needs a JSON list of words: {item.text[:80]}")
                state.shell = values
                self._emit(f"SHELL {json.dumps(values)}")
            case "LABEL" | "EXPOSE":  # without effect in a cell
                for value in values:
                    self._expand(value)
            case "ONBUILD" | "MAINTAINER":
                pass
            case _:
                raise DockerfileError(f"{word} is no instruction")

    def _run(self, item: Instruction, stage: Stage) -> None:
        flags = ""
        self.step_users.add(self.state.user)
        for name, value in flags_of(item):
            if name == "mount":
                flags += self._mount(value, stage)
            elif name == "security" and value != "sandbox":
                raise DockerfileError(f"RUN can't have --security={value} here")
            elif name == "network" and value not in {"default", "none", "host"}:
                raise DockerfileError(f"RUN can't have --network={value} here")
        command = " ".join(item.values)
        if item.is_json:
            self._emit(f"RUN {flags}{json.dumps(item.values)}")
            return
        lone = _LONE.fullmatch(command) if len(item.heredocs) == 1 else None
        if lone:
            name, body = item.heredocs[0]
            command = _TABS.sub("", body) if lone[1] else body
            if command.startswith("#!"):
                self._file(item, name, command, 0o755)
                source = f"from={self._bases.context},source=/{item.line}"
                mount = f"--mount=type=bind,{source},target={_PROGRAMS}"
                self._emit(f"RUN {flags}{mount} {json.dumps([f'{_PROGRAMS}/{name}'])}")
                return
        elif item.heredocs:
            command += "\n" + "\n".join(f"{body}{name}" for name, body in item.heredocs)
        if item.heredocs or command.startswith(("[", "--")) or command.endswith("\\"):
            command = json.dumps([*self.state.shell, command])
        self._emit(f"RUN {flags}{command}")

    def _file(self, item: Instruction, name: str, text: str, mode: int) -> HeredocFile:
        if not _FILE_NAME.fullmatch(name):
            raise DockerfileError(f"the here-document {name!r} has no plain word as its name")
        file = HeredocFile(f"{item.line}/{name}", text, mode)
        self.files.append(file)
        return file

    def _mount(self, text: str, stage: Stage) -> str:
        """The flag for buildah, or nothing for an optional secret: none is given here."""
        given = mount_options(text)
        source = stage.source(given.pop("from")) if "from" in given else ""
        found = {key: self._expand(value) for key, value in given.items()}
        kind, target = found.pop("type", "bind"), found.pop("target", "")
        wrong = set(found) - _MOUNTS.get(kind, set())
        if kind not in _MOUNTS or wrong:
            raise DockerfileError(f"--mount={text} is not known: {min(wrong, default=kind)}")
        if kind in {"secret", "ssh"}:
            if found.get("required", "false").lower() in _TRUE:
                name = found.get("id", target or "default")
                raise DockerfileError(f"--mount={text}: the {kind} {name} is required, not given")
            return ""
        path = "/" + posixpath.normpath(posixpath.join(self.state.cwd, target)).strip("/")
        if not target or path == "/":
            raise DockerfileError(f"--mount={text} has no target below /")
        is_fixed = found.pop("readonly", str(kind == "bind")).lower() in _TRUE
        kept = {key: value for key, value in found.items() if key not in {"sharing", "size"}}
        kept |= {"from": source.name if isinstance(source, Stage) else source} if source else {}
        words = [f"{key}={value}" for key, value in {"target": path, **kept}.items() if value]
        if not all(_OPTION.fullmatch(word) for word in words):
            raise DockerfileError(f"--mount={text} has a space, comma or quote in a value")
        access = ["ro"] if is_fixed else ["rw"] if kind == "bind" else []
        return f"--mount={','.join([f'type={kind}', *words, *access])} "

    def _copy(self, item: Instruction, stage: Stage) -> None:
        flags, word, values = dict(flags_of(item)), item.word, item.values
        chown, chmod = self._expand(flags.get("chown", "")), self._expand(flags.get("chmod", ""))
        has_parents = flags.get("parents", "").lower() in _TRUE
        excludes = tuple(self._expand(value) for name, value in flags_of(item) if name == "exclude")
        checksum, change = self._expand(flags.get("checksum", "")), None
        if chmod and not re.fullmatch("[0-7]{1,4}", chmod):
            change = symbolic_chmod(chmod)
            modes = {change(mode) for mode in (0, 0o7777, stat.S_IFDIR, stat.S_IFDIR | 0o7777)}
            if len(modes) == 1:
                chmod, change = f"{modes.pop():04o}", None
        openers = [each for each in values if item.heredocs and _OPENER.fullmatch(each)]
        if len(values) < 2 or len(openers) != len(item.heredocs) or values[-1] in openers:
            raise DockerfileError(f"{word} needs sources and a destination")
        sources = tuple(self._expand(value) for value in values[:-1] if value not in openers)
        destination = self._expand(values[-1])
        options = f"--chown={chown} " if chown else ""
        options += f"--chmod={chmod} " if chmod and not change else ""
        is_prepared = bool(change or excludes or has_parents or checksum)
        is_remote = word == "ADD" and any(_REMOTE.match(source) for source in sources)
        if is_prepared and (is_remote or "from" in flags):
            named = " ".join(flag for flag in item.flags if not flag.startswith(_KEPT_FLAGS))
            raise DockerfileError(f"{word} can't have {named} here with another source")
        if any(not _OPTION.fullmatch(each) for each in options.split(" ") if each) or "from" in (
            flags if openers else ()
        ):
            raise DockerfileError(f"{word} can't have these flags here: {' '.join(item.flags)}")
        context = f"--from={self._bases.context} "
        if is_prepared and sources:
            copy = Copy(
                line=item.line,
                is_add=word == "ADD",
                sources=sources,
                excludes=excludes,
                has_parents=has_parents,
                chmod=chmod if change else "",
                checksum=checksum,
            )
            self.copies.append(copy)
            self._emit(f"COPY {options}{context}{_words((copy.source, destination))}")
        elif sources:
            found = stage.source(flags["from"]) if "from" in flags else ""
            name = found.name if isinstance(found, Stage) else found
            options_from = f"{options}--from={name} " if name else options
            self._emit(f"{word} {options_from}{_words((*sources, destination))}")
        if len(sources) + len(openers) > 1 and openers and not destination.endswith(("/", ".")):
            what = f"the destination of several files must end with /: {destination}"
            raise DockerfileError(what)
        for opener, (name, body) in zip(openers, item.heredocs, strict=True):
            match = _OPENER.fullmatch(opener)
            text = _TABS.sub("", body) if match and match[1] else body
            if match and match[2] == name:
                text = self._expand(text, escape="\\", has_quotes=False)
            file = self._file(item, name, text, change(0o644) if change else 0o644)
            self._emit(f"COPY {options}{context}{_words((file.path, destination))}")

    def _health(self, item: Instruction) -> None:
        flags = dict(flags_of(item))
        self.state.start_interval_ns = _nanoseconds(flags.pop("start-interval", "0s"))
        kind, *test = item.values
        options = "".join(f"--{name}={value} " for name, value in flags.items())
        if kind.upper() not in {"NONE", "CMD"} or (kind.upper() == "CMD") != bool(test):
            raise DockerfileError("HEALTHCHECK needs NONE, or CMD and a command")
        if not all(_OPTION.fullmatch(value) for value in flags.values()):
            raise DockerfileError(f"HEALTHCHECK can't have these flags: {' '.join(item.flags)}")
        command = json.dumps(test) if item.is_json else " ".join(test)
        self._emit(f"HEALTHCHECK {options}{kind.upper()} {command}".rstrip(" "))


def _word(value: str) -> str:
    """A word that buildah takes as it is."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def _words(values: Iterable[str]) -> str:
    return json.dumps([_word(value) for value in values])


def _nanoseconds(text: str) -> int:
    parts = _DURATION.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise DockerfileError(f"{text} is no duration, like 5s")
    return min(int(sum(float(number) * _NS[unit] for number, unit in parts)), (1 << 63) - 1)
