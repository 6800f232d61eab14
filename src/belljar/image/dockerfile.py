"""Which images a Dockerfile starts from, and the file as buildah 1.28 can read it. Pure.

Source: the Dockerfile reference (parser directives, line continuation, ARG before FROM,
`COPY --from`, `RUN --mount`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from belljar.image.heredoc import (
    DockerfileError,
    Heredoc,
    HeredocFile,
    Surroundings,
    read_heredocs,
    translate,
)

MAX_BYTES: Final = 1 << 20
"""Of a Dockerfile."""
_MAX_VALUE_CHARS: Final = 4096
"""Of an argument or a base: arguments that name each other grow with each line."""
_ESCAPE: Final = re.compile(r"#\s*escape\s*=\s*([\\`])\s*", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^{}]*))?\})", re.ASCII)
_WITH_HEREDOC: Final = frozenset({"RUN", "COPY", "ADD"})
_SHELL: Final = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its word in upper case, what follows it, its lines, counted from 0, and the
    here-documents that these end with."""

    word: str
    rest: str
    first: int
    end: int
    heredocs: tuple[Heredoc, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """The images that a file starts or copies from, each once; and, by the FROM's first and last
    line, which are where."""

    images: tuple[str, ...]
    froms: tuple[tuple[Instruction, str, str], ...]


def base_images(text: str, args: Mapping[str, str], *, target: str = "") -> Bases:
    """The images that the file names, with `args` filled in; not stages and not `scratch`.

    Up to the stage `target`, if one is given. Raises `DockerfileError`.
    """
    known, stages, found = dict[str, str](), set[str](), list[str]()
    froms: list[tuple[Instruction, str, str]] = []
    for item in instructions(text):
        if item.word == "ARG" and not froms:
            name, _, default = item.rest.partition("=")
            known[name.strip()] = args.get(name.strip(), _filled(default.strip().strip("\"'"), known))
        elif item.word == "FROM":
            if froms and target and target.lower() in stages:
                break
            image, stage = _from(item.rest, known)
            froms.append((item, image, stage))
            if image.lower() not in stages and image != "scratch":
                found.append(image)
            if stage:
                stages.add(stage.lower())
        elif froms:
            found += [image for image in _sources(item) if image.lower() not in stages]
    if not froms:
        raise DockerfileError("it has no FROM")
    return Bases(images=tuple(dict.fromkeys(found)), froms=tuple(froms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildable:
    """A Dockerfile for buildah. `heredoc_context` is the name of a context that holds `files`."""

    text: str
    heredoc_context: str
    files: tuple[HeredocFile, ...]


def make_buildable(
    text: str, bases: Bases, ids: Mapping[str, str], shells: Mapping[str, Sequence[str]] | None = None
) -> Buildable:
    """The same file where each FROM names its image by the id that it has in buildah's storage, and
    here-documents are files of a context or scripts of a shell.

    `shells` are those of the base images; without one it is `/bin/sh -c`. Raises `DockerfileError`.
    """
    # A name that the file can't contain: it is made of the file's digest.
    context = f"heredocs-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:40]}"
    lines, files, stages = _lines(text), list[HeredocFile](), dict[str, Sequence[str]]()
    froms = {item.first: (image, stage) for item, image, stage in bases.froms}
    shell, stage = tuple[str, ...](_SHELL), ""
    for item in instructions(text):
        new = None
        if item.first in froms:
            image, stage = froms[item.first]
            new = [f"FROM {ids.get(image, image)}" + (f" AS {stage}" if stage else "")]
            shell = tuple(stages.get(image.lower()) or (shells or {}).get(image) or _SHELL)
        elif item.word == "SHELL":
            shell = _shell(item.rest)
        elif item.heredocs:
            around = Surroundings(shell=shell, context=context, directory=str(item.first))
            new, more = translate(item.word, item.rest, item.heredocs, around)
            files += more
        if stage:
            stages[stage.lower()] = shell
        if new is not None:
            blank = [""] * (item.end - item.first - 1)
            lines[item.first : item.end] = ["\n".join(new), *blank]
    return Buildable(text="\n".join(lines) + "\n", heredoc_context=context, files=tuple(files))


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a file, those that go over several lines in one.

    Raises `DockerfileError` for a here-document that can't be read.
    """
    lines = _lines(text)
    escape = next((match[1] for line in lines[:1] if (match := _ESCAPE.fullmatch(line))), "\\")
    kept, first, number = "", 0, 0
    while number < len(lines) or kept:
        is_last = number >= len(lines)
        line = "" if is_last else lines[number]
        number += 1
        if not is_last and (not line.strip() or line.lstrip().startswith("#")):
            continue
        first = first if kept else number - 1
        if not is_last and line.rstrip().endswith(escape):
            kept += line.rstrip()[:-1] + " "
            continue
        words = (kept + line).split(None, 1)
        kept = ""
        if not words:
            continue
        word, rest = words[0].upper(), "".join(words[1:]).strip()
        heredocs: tuple[Heredoc, ...] = ()
        if word in _WITH_HEREDOC:
            heredocs, number = read_heredocs(rest, lines, number)
        yield Instruction(word, rest, first, min(number, len(lines)), heredocs)


def _lines(text: str) -> list[str]:
    """As Docker's parser and buildah's count them: other line breaks of Unicode are none."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _shell(rest: str) -> tuple[str, ...]:
    try:
        words = json.loads(rest)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise DockerfileError(f"SHELL needs a JSON list of words: {rest[:80]}")
    return tuple(words)


def _from(rest: str, known: Mapping[str, str]) -> tuple[str, str]:
    words = [word for word in rest.split() if not word.startswith("--")]
    if not words or len(words) not in {1, 3}:
        raise DockerfileError("a FROM is neither `FROM image` nor `FROM image AS stage`")
    image = _filled(words[0].strip("\"'"), known)
    if not image:
        raise DockerfileError(f"`FROM {words[0]}` names no image: give the argument with --build-arg")
    return image, words[2] if len(words) > 1 else ""


def _sources(item: Instruction) -> Iterator[str]:
    """Images that a step copies or mounts from. A number is a stage."""
    for option in (option for option in item.rest.split() if option.startswith("--")):
        if item.word == "COPY" and option.startswith("--from="):
            yield from _named(option.removeprefix("--from="))
        elif item.word == "RUN" and option.startswith("--mount="):
            for part in option.removeprefix("--mount=").split(","):
                yield from _named(part.removeprefix("from=")) if part.startswith("from=") else ()


def _named(image: str) -> Iterator[str]:
    if image and not image.isdigit():
        yield image


def _filled(text: str, known: Mapping[str, str]) -> str:
    def put(match: re.Match[str]) -> str:
        value = known.get(match[1] or match[2], "")
        if match[3] == "-":
            return value or match[4]
        return (match[4] if value else "") if match[3] == "+" else value

    filled = _VARIABLE.sub(put, text) if len(text) <= _MAX_VALUE_CHARS else text
    if len(filled) > _MAX_VALUE_CHARS:
        raise DockerfileError(f"a value before its first stage has more than {_MAX_VALUE_CHARS:,} characters")
    return filled
