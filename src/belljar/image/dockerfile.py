"""A Dockerfile's text as buildah 1.28 can read it. Pure.

Replaced are here-documents, flags that buildah lacks, and what it does otherwise than BuildKit.
Sources: the Dockerfile reference; BuildKit's here-documents.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from belljar.image.config import ImageConfig
from belljar.image.stages import (
    MAX_LINE_BYTES,
    TRUE,
    Bases,
    BuildStage,
    DockerfileError,
    Instruction,
    at_line,
    flags_of,
    mount_options,
)

# An empty directory in the context of here-documents.
EMPTY: Final = "empty"
_SHELL: Final = ("/bin/sh", "-c")
# An instruction and its flags.
_HEAD: Final = re.compile(r"\s*\w+((?:\s+--[^\s]+)*)\s*")
# A descriptor, `<<`, a dash that strips tabs, and a name, which quotes make literal.
_OPENER: Final = re.compile(r"\d*<<(-?)([^<]+)")
_LONE: Final = re.compile(r"\d*<<(-?)(?:[^\s<'\"]+|'[^'<]+'|\"[^\"<]+\")")
_FILE_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
# Of a flag or an option: no blank, comma or quote.
_OPTION: Final = re.compile(r"[^\s,\"'\\`]*")
# An escaped `[` is no such thing in buildah; `**` is `*` in Docker, any depth in buildah.
_ODD_PATTERN: Final = re.compile(r"\[\[|\\|\*\*")
_REMOTE: Final = re.compile(r"https?://|git@|git://|ssh://")
_TABS: Final = re.compile(r"^\t+", re.MULTILINE)
# Of a step: its network is the build's own.
_HARMLESS: Final = {"network=default", "network=none", "network=host", "security=sandbox"}
_ROOT: Final = re.compile("(root|0)(:(root|0))?")
# What buildah 1.28 has of them, beside `type` and `target`.
_MOUNTS: Final = {
    "bind": {"source", "readonly"},
    "cache": {"source", "readonly", "id", "mode", "uid", "gid"},
    "tmpfs": set[str](),
}
# What it lacks, and what changes nothing here.
_DROPPED: Final = {"sharing", "size"}
_AS_WRITTEN: Final = {"ARG", "ENV", "USER", "STOPSIGNAL", "SHELL", "CMD", "ENTRYPOINT"}
_WITHOUT_EFFECT: Final = {"LABEL", "EXPOSE", "MAINTAINER"}


@dataclass(slots=True, kw_only=True)
class Buildable:
    """The context `heredoc_context` holds `files`; `step_users` are those of RUN, as written.

    `volumes` are kept apart: buildah would discard what later steps write there.
    """

    heredoc_context: str
    lines: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    step_users: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def make_buildable(
    bases: Bases, ids: Mapping[str, str], configs: Mapping[str, ImageConfig]
) -> Buildable:
    made, ended = Buildable(heredoc_context=bases.context), dict[str, _StageWriter]()
    for name, value in bases.known.items():
        if "\n" in value:  # what follows would be an instruction
            raise DockerfileError(f"the argument {name} has a line break")
        value = re.sub(r'(["\\$])', r"\\\1", value)
        made.lines.append(f'ARG {name}="{value}"')
    for stage in bases.stages:
        base = stage.base
        if isinstance(base, BuildStage):
            writer, source = replace(ended[base.name], stage=stage), base.name
        else:
            config, source = configs.get(base, ImageConfig()), ids.get(base, base)
            if config.on_build:
                raise DockerfileError(f"its base {base} has instructions of ONBUILD")
            writer = _StageWriter(
                stage=stage,
                made=made,
                volumes=config.volumes,
                cwd=config.workdir,
                user=config.user,
                shell=config.shell or _SHELL,
            )
        writer.emit(f"FROM {source} AS {stage.name}")
        made.lines += writer.args  # a stage inherits those of its base, but not in buildah
        for item in stage.items:
            with at_line(item.line):
                writer.take(item)
        ended[stage.name], made.volumes = writer, writer.volumes
    return made


@dataclass(slots=True, kw_only=True)
class _StageWriter:
    """Writes a stage's instructions; a stage on top continues with a copy.

    `args` are the ARG lines of the stage and of those below.
    """

    stage: BuildStage
    made: Buildable
    args: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    cwd: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = _SHELL

    def emit(self, line: str) -> None:
        if "\n" in line or line.endswith("\\"):
            raise DockerfileError("it has a line break, or ends with a backslash")
        if len(line.encode()) > MAX_LINE_BYTES:
            raise DockerfileError(f"it has more than {MAX_LINE_BYTES:,} bytes: COPY a file instead")
        self.made.lines.append(line)

    def take(self, item: Instruction) -> None:
        word, values = item.word, item.values
        flags = flags_of(item)
        head = _HEAD.match(item.text)
        if head is None or len(head[1].split()) != len(item.flags):
            raise DockerfileError(f"its flags can't be read: {item.text[:80]}")
        if not values and word not in {"CMD", "ENTRYPOINT"}:
            raise DockerfileError(f"{word} needs an argument")
        rest = item.text[head.end() :]
        if word == "RUN":
            self._run(item, flags, rest)
        elif word in {"COPY", "ADD"}:
            self._copy(item, dict(flags), rest)
        elif word == "WORKDIR":
            path = values[0].strip("\"'")
            self._make_directory(path)
            self.cwd = posixpath.join(self.cwd, path)
            self.emit(f"WORKDIR {rest}")
        elif word == "VOLUME":
            paths = [posixpath.normpath("/" + value).strip("/") for value in values]
            if not all(paths) or re.search("[\n$]", "".join(values)):
                raise DockerfileError("VOLUME needs plain paths below /, without a variable")
            self.volumes += tuple(f"/{path}" for path in paths)
        elif word == "HEALTHCHECK":
            # buildah 1.28 has no start interval; a cell asks each second anyway
            kept = [f"--{name}={value} " for name, value in flags if name != "start-interval"]
            self.emit(f"HEALTHCHECK {''.join(kept)}{rest}")
        elif word in {"CMD", "ENTRYPOINT"} and values and not item.is_json:
            # buildah gives it to /bin/sh, whatever SHELL says
            self.emit(f"{word} {json.dumps([*self.shell, *values])}")
        elif word in _AS_WRITTEN and (item.is_json or word != "SHELL"):
            self.user = values[0].strip("\"'") if word == "USER" else self.user
            self.shell = values if word == "SHELL" else self.shell
            self.emit(f"{word} {rest}")
            self.args += (f"ARG {rest}",) if word == "ARG" else ()
        elif word not in _WITHOUT_EFFECT:
            raise DockerfileError(f"it can't be read: {item.text[:80]}")

    def _make_directory(self, path: str) -> None:
        """Make a WORKDIR as its user's, like BuildKit."""
        user, owner = self.user, ""
        if not _OPTION.fullmatch(user):
            raise DockerfileError("its USER has a blank, comma or quote")
        if not _ROOT.fullmatch(user):
            owner = f"--chown={f'{user}:{user}' if user.isdigit() else user} "
        place = json.dumps([EMPTY, f"{path}/"])
        self.emit(f"COPY {owner}--from={self.made.heredoc_context} {place}")

    def _run(self, item: Instruction, given: list[tuple[str, str]], command: str) -> None:
        flags = ""
        self.made.step_users.add(self.user)
        for name, value in given:
            if name == "mount":
                flags += self._mount(value)
            elif f"{name}={value}" not in _HARMLESS:
                raise DockerfileError(f"RUN can't have --{name}={value} here")
        if not item.heredocs:
            if not item.is_json and command.startswith(("[", "--")):
                command = json.dumps([*self.shell, command])
            self.emit(f"RUN {flags}{command}")
            return
        command = " ".join(item.values)
        script = command + "".join(f"\n{body}{name}" for name, body in item.heredocs)
        lone = _LONE.fullmatch(command) if len(item.heredocs) == 1 else None
        if lone:
            name, body = item.heredocs[0]
            script = _TABS.sub("", body) if lone[1] else body
            if script.startswith("#!"):
                raise DockerfileError(f"{name} is a program: COPY it, and run it")
        self.emit(f"RUN {flags}{json.dumps([*self.shell, script])}")

    def _mount(self, text: str) -> str:
        """Return the flag for buildah, none for an optional secret."""
        given = mount_options(text)
        kind, source = given.pop("type", "bind"), str(self.stage.source(given.pop("from", "")))
        if kind in {"secret", "ssh"}:
            if given.get("required", "").lower() in TRUE:
                raise DockerfileError(f"--mount={text}: this {kind} is required, and none is given")
            return ""
        # A bind mount without a target is on the work directory.
        target = given.pop("target", "." if kind == "bind" else "")
        path = posixpath.normpath(posixpath.join(self.cwd, target))
        is_known = kind in _MOUNTS and not given.keys() - _MOUNTS[kind] - _DROPPED
        if not is_known or not target or path == "/":
            raise DockerfileError(f"--mount={text} has an unknown type or option, or no target")
        is_fixed = given.pop("readonly", str(kind == "bind")).lower() in TRUE
        options = {"type": kind, "target": path, "from": source, **given, "sharing": "", "size": ""}
        words = [f"{key}={value}" for key, value in options.items() if value]
        if not all(map(_OPTION.fullmatch, words)) or "$" in "".join(words):
            raise DockerfileError(f"--mount={text} has a variable, blank, comma or quote in it")
        words += ["ro"] if is_fixed else ["rw"] if kind == "bind" else []
        return f"--mount={','.join(words)} "

    def _copy(self, item: Instruction, flags: dict[str, str], rest: str) -> None:
        word, values = item.word, item.values
        source = str(self.stage.source(flags.pop("from", "")))
        flags.pop("link", None)  # it changes caching alone
        if not all(map(_OPTION.fullmatch, flags.values())) or len(values) < 2:
            raise DockerfileError(f"{word} needs sources, a destination, and plain flags")
        options = "".join(f"--{name}={value} " for name, value in flags.items())
        openers = [each for each in values if item.heredocs and _OPENER.fullmatch(each)]
        *named, destination = (each for each in values if each not in openers)
        is_remote = word == "ADD" and any(map(_REMOTE.match, named))
        if not is_remote and any(map(_ODD_PATTERN.search, named)):
            raise DockerfileError(f"{word} can't have `**`, `\\\\` or `[[` in a source")
        if not openers:
            self.emit(f"{word} {options}{f'--from={source} ' if source else ''}{rest}")
            return
        if source or len(openers) != len(item.heredocs) or values[-1] in openers:
            raise DockerfileError(f"{word} needs a destination, and no other source")
        if len(values) > 2 and not f"/{destination}".endswith(("/", "/.")):
            raise DockerfileError(f"the destination of files must end with /: {destination}")
        if named:
            self.emit(f"{word} {options}{json.dumps([*named, destination])}")
        for opener, (name, body) in zip(openers, item.heredocs, strict=True):
            text = _TABS.sub("", body) if opener.partition("<<")[2].startswith("-") else body
            if opener.endswith(("<<" + name, "<<-" + name)) and re.search(r"[\\$]", text):
                raise DockerfileError(f"a variable or backslash in it isn't read: write <<'{name}'")
            if not _FILE_NAME.fullmatch(name):
                raise DockerfileError(f"the here-document {name!r} has no plain word as its name")
            self.made.files[path := f"{item.line}/{name}"] = text
            place = json.dumps([path, destination])
            self.emit(f"COPY {options}--from={self.made.heredoc_context} {place}")
