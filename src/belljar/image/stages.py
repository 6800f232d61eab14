"""The stages of a Dockerfile, and the images that they start or copy from.

BuildKit's own parser (the package `dockerfile`) reads it in another process: hostile text can crash
it or keep it busy, and the threads of a Go library would stay in a process that forks.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from belljar.image.config import debian_arch

# Of a Dockerfile.
MAX_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 65_000  # BuildKit's and buildah's readers drop what follows a longer line
# Beyond the CPU seconds that the process has (`parser_process`), on a machine that is busy.
_TIMEOUT_S: Final = 10
_PROGRAM: Final = Path(__file__).with_name("parser_process.py")
_ESCAPE: Final = re.compile(r"(?i)(?:\s*#\s*(?:syntax|check)\s*=.*\n)*\s*#\s*escape\s*=\s*[^\\\s]")


class DockerfileError(ValueError):
    """The text is for the Dockerfile's author."""


@dataclass(frozen=True, slots=True)
class Instruction:
    word: str
    line: int
    flags: tuple[str, ...]
    values: tuple[str, ...]
    is_json: bool
    text: str
    heredocs: tuple[tuple[str, str], ...]


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
    return tuple(
        Instruction(word, line, tuple(flags), tuple(values), is_json, text, tuple(map(tuple, docs)))
        for word, line, flags, values, is_json, text, docs in found
    )


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
# Docker's other words for an option of a mount.
_LONGER: Final = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuildStage:
    """`base` is an image, or the stage it starts from."""

    name: str
    base: str | BuildStage
    items: tuple[Instruction, ...]
    earlier: Mapping[str, BuildStage]

    def __str__(self) -> str:
        return self.name

    def sources(self) -> Iterator[str | BuildStage]:
        """Yield the images and stages copied or mounted from."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """Images started or copied from, and the stages that the target needs, the target last.

    `known` are the arguments before the first FROM and the platform's.
    """

    images: tuple[str, ...]
    stages: tuple[BuildStage, ...]
    known: Mapping[str, str]
    context: str


def base_images(text: str, args: Mapping[str, str], *, target: str = "") -> Bases:
    """Raise `DockerfileError`; the target is the last stage by default."""
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
        platform = (
            _expanded(written, known).lower().replace("x86_64", "amd64").replace("aarch64", "arm64")
        )
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
        if name not in _FLAGS.get(item.word, ()):
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
