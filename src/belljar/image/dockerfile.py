"""Reads a Dockerfile: its stages, the images that they need, and its text for buildah 1.28.

BuildKit's own parser reads it in another process: hostile text can crash it or keep it busy, and a
Go library's threads would stay in a process that forks. The text differs where buildah does.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final, NamedTuple

from belljar.image.config import ImageConfig, debian_arch

# Of a Dockerfile.
MAX_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 65_000  # BuildKit's and buildah's readers drop what follows a longer line
# Beyond the CPU seconds that the process has (`parser_process`), on a machine that is busy.
_TIMEOUT_S: Final = 10
_PROGRAM: Final = Path(__file__).with_name("parser_process.py")
_ESCAPE: Final = re.compile(r"(?i)(?:\s*#\s*(?:syntax|check)\s*=.*\n)*\s*#\s*escape\s*=\s*[^\\\s]")


class DockerfileError(ValueError):
    """The text is for the Dockerfile's author."""


class Instruction(NamedTuple):
    word: str
    line: int
    flags: Sequence[str]
    values: Sequence[str]
    is_json: bool
    text: str
    heredocs: Sequence[tuple[str, str]]


# A check, a preview and a build read the same files, each in a process of its own.
@lru_cache(maxsize=64)
def parse(text: str) -> tuple[Instruction, ...]:
    text = text.removeprefix("\ufeff")
    # Only files for Windows have another one, which directives before all else name.
    if _ESCAPE.match(text):
        raise DockerfileError("`# escape=` is not read: use a backslash")
    raw = text.encode(errors="replace")
    if len(raw) > MAX_BYTES or "\0" in text:
        raise DockerfileError("it is larger than 1 MiB, or contains a NUL byte")
    for number, line in enumerate(raw.split(b"\n"), 1):
        if len(line) > MAX_LINE_BYTES:
            raise DockerfileError(f"line {number}: it has more than {MAX_LINE_BYTES:,} bytes")
    # The parser's directory alone: nothing of the working directory is imported
    library = str(distribution("dockerfile").locate_file(""))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_PROGRAM), json.dumps([library])],
            input=raw,
            capture_output=True,
            timeout=_TIMEOUT_S,
            env={},
            check=False,
        )
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise DockerfileError("its parser failed, or took too much time or memory") from None
    if isinstance(found, str):
        raise DockerfileError(found)
    return tuple(Instruction(*each) for each in found)


# Words that Go reads as true, in lower case.
TRUE: Final = frozenset({"true", "1", "t"})
_MAX_STAGES: Final = 200  # of one file: each looks at all before it
# `$NAME`, `${NAME}`, and `${NAME:-word}` with - or + as the operator.
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?)([-+])([^{}$]*))?\})", re.ASCII)
# Of a value: values that name each other grow with each line.
_MAX_VALUE_CHARS: Final = 32_768
_STAGE: Final = re.compile(r"[a-z][a-z0-9_.-]*")
_IMAGE: Final = re.compile(r"[\w./:@-]+", re.ASCII)
_FLAGS: Final = {
    "FROM": {"platform"},
    "RUN": {"mount", "network", "security"},
    "COPY": {"from", "chown", "chmod", "link"},
    "ADD": {"chown", "chmod", "link"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "start-interval", "retries"},
}
# buildah knows no symbolic mode, and fills in a variable.
_MODE: Final = re.compile(r"[0-7]+|.*\$.*")
# Docker's other words for an option of a mount.
_LONGER: Final = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuildStage:
    name: str
    base: str | BuildStage
    items: tuple[Instruction, ...]
    earlier: Mapping[str, BuildStage]

    def __str__(self) -> str:
        return self.name

    def sources(self) -> Iterator[str | BuildStage]:
        for item in self.items:
            with at_line(item.line):
                for name, value in flags_of(item):
                    if item.word == "RUN" and name == "mount":
                        yield self.source(mount_options(value).get("from", ""))
                    elif name == "from":
                        yield self.source(value)

    def source(self, name: str) -> str | BuildStage:
        found = self.earlier.get(name.lower(), name)
        if name and found == name and (name.isdigit() or not _IMAGE.fullmatch(name)):
            raise DockerfileError(f"from={name} names neither an earlier stage nor an image")
        return found


class Bases(NamedTuple):
    """The target's stage is the last."""

    images: tuple[str, ...]
    stages: tuple[BuildStage, ...]
    known: Mapping[str, str]
    context: str


def base_images(text: str, args: Mapping[str, str], *, target: str = "") -> Bases:
    """Raise `DockerfileError` for an unusable file."""
    arch = debian_arch()
    platform = {"PLATFORM": f"linux/{arch}", "OS": "linux", "ARCH": arch, "VARIANT": ""}
    known = {f"{side}{name}": platform[name] for side in ("TARGET", "BUILD") for name in platform}
    known |= {name: args[name] for name in known if name in args}
    begun = list[tuple[Instruction, list[Instruction]]]()
    for item in parse(text):
        with at_line(item.line):
            if item.word == "FROM":
                begun.append((item, []))
            elif begun:
                begun[-1][1].append(item)
            elif item.word == "ARG":
                for each in item.values:
                    name, has_default, default = each.partition("=")
                    if name in args or has_default:
                        known[name] = args[name] if name in args else _expanded(default, known)
            else:
                raise DockerfileError(f"{item.word} stands before the first FROM")
    if not begun or len(begun) > _MAX_STAGES:
        raise DockerfileError(f"it has no FROM, or more than {_MAX_STAGES}")
    stages, by_name = list[BuildStage](), dict[str, BuildStage]()
    for number, (item, items) in enumerate(begun):
        with at_line(item.line):
            image, name = _from(item, known)
            base = by_name.get(image.lower(), image)
        unique = f"{name or 'stage'}-{number}"
        stages.append(BuildStage(name=unique, base=base, items=tuple(items), earlier=dict(by_name)))
        by_name |= {name or str(number): stages[-1], str(number): stages[-1]}
    last = by_name.get(target.lower()) if target else stages[-1]
    if last is None:
        raise DockerfileError(f"it has no stage {target}")
    needed, images = [last], list[str]()
    for stage in reversed(stages):
        if stage in needed:
            found = [stage.base, *stage.sources()]
            needed += [each for each in found if isinstance(each, BuildStage)]
            images[:0] = [each for each in found if isinstance(each, str)]
    return Bases(
        images=tuple(image for image in dict.fromkeys(images) if image not in {"", "scratch"}),
        stages=tuple(stage for stage in stages if stage in needed),
        known=known,
        context=f"heredocs-{hashlib.sha256(text.encode()).hexdigest()[:40]}",
    )


@contextmanager
def at_line(line: int) -> Iterator[None]:
    try:
        yield
    except DockerfileError as error:
        raise DockerfileError(f"line {line}: {error}") from None


def _expanded(text: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        plain, name, colon, operator, word = found.groups()
        here = known.get(plain or name)
        is_set = bool(here) if colon else here is not None
        if operator == "+":
            return str(word) if is_set else ""
        return str(word) if operator and not is_set else here or ""

    quote = text[:1] if text[:1] in {'"', "'"} and text.endswith(text[:1]) else ""
    inner = text.removeprefix(quote).removesuffix(quote)
    if quote == "'":
        return inner
    if re.search(r"[\\\"'$]", _VARIABLE.sub("", inner)):
        raise DockerfileError(f"a variable, quote or backslash is not read here: {text[:80]}")
    if len(made := _VARIABLE.sub(value, inner)) > _MAX_VALUE_CHARS:
        raise DockerfileError(f"a value has more than {_MAX_VALUE_CHARS:,} characters")
    return made


def _from(item: Instruction, known: Mapping[str, str]) -> tuple[str, str]:
    if len(item.values) not in {1, 3} or "".join(item.values[1:2]).lower() not in ("", "as"):
        raise DockerfileError("a FROM is neither `FROM image` nor `FROM image AS stage`")
    for _, written in flags_of(item):
        platform = _expanded(written, known).lower()
        platform = platform.replace("x86_64", "amd64").replace("aarch64", "arm64")
        parts, arch = platform.split("/"), debian_arch()
        if parts[:2] not in (["linux", arch], ["linux"]) and parts != [arch]:
            raise DockerfileError(f"--platform={written} is not this machine's platform")
    image, name = _expanded(item.values[0], known), "".join(item.values[2:]).lower()
    if not image:
        what = f"`FROM {item.values[0]}` names no image: give the argument with --build-arg"
        raise DockerfileError(what)
    if not _IMAGE.fullmatch(image) or (name and not _STAGE.fullmatch(name)):
        raise DockerfileError(f"a FROM names no image or stage: {item.text[:80]}")
    return image, name


def flags_of(item: Instruction) -> list[tuple[str, str]]:
    found = []
    for flag in item.flags:
        name, has_value, value = flag.removeprefix("--").partition("=")
        is_odd = name == "chmod" and not _MODE.fullmatch(value)
        if is_odd or name not in _FLAGS.get(item.word, ()):
            raise DockerfileError(f"{item.word} can't have {flag} here")
        found.append((name, value if has_value else "true"))
    return found


def mount_options(text: str) -> dict[str, str]:
    found = dict[str, str]()
    for each in text.split(","):
        key, has_value, value = each.partition("=")
        key, value = key.lower(), value if has_value else "true"
        if key in {"rw", "readwrite"}:
            key, value = "readonly", str(value.lower() not in TRUE)
        elif not has_value and key not in {"ro", "readonly", "required"}:
            raise DockerfileError(f"--mount={text} has an option without a value: {each!r}")
        found[_LONGER.get(key, key)] = value
    return found


# --- the text for buildah

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
# A form of a variable that buildah 1.28 lacks, once literal text is gone.
_OPERATOR: Final = re.compile(r"\$\{\w*(?!\w|\}|:[-+])[^}]*\}?", re.ASCII)
_LITERAL: Final = re.compile(r"""("[^"]*")|'[^']*'""")
_FILLED_IN: Final = {"ARG", "ENV", "USER", "STOPSIGNAL", "WORKDIR", "COPY", "ADD"}
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
    """`volumes`: buildah would discard what later steps write there.

    `offline_line` is that of a step that wants no network, or 0.
    """

    heredoc_context: str
    lines: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    step_users: set[str] = field(default_factory=set)
    offline_line: int = 0

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
    """A stage on top continues with a copy."""

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
        read = _LITERAL.sub(r"\1", re.sub(r"\\.", "", " ".join((*item.flags, *values))))
        if word in _FILLED_IN and (odd := _OPERATOR.search(read)):
            raise DockerfileError(f"{word} can't have {odd[0]}: write $V, ${{V:-x}} or ${{V:+x}}")
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
            self.shell = tuple(values) if word == "SHELL" else self.shell
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
            elif value == "none":
                self.made.offline_line = item.line
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
        """Return nothing for an optional secret."""
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
        options = "".join(f"--{name}={value} " for name, value in flags.items())
        if not all(map(_OPTION.fullmatch, flags.values())) or len(values) < 2:
            raise DockerfileError(f"{word} needs sources, a destination, plain flags: {options}")
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
