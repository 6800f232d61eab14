"""Which images a Dockerfile starts from. Pure; everything else of it is buildah's to read.

Source: the Dockerfile reference (parser directives, line continuation, ARG before FROM, `COPY --from`, `RUN --mount`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAX_BYTES: Final = 1 << 20
"""Of a Dockerfile."""
_MAX_VALUE_CHARS: Final = 4096
"""Of an argument or a base: arguments that name each other grow with each line."""
_ESCAPE: Final = re.compile(r"#\s*escape\s*=\s*([\\`])\s*", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^{}]*))?\})", re.ASCII)
_HEREDOC: Final = re.compile(r"<<-?(['\"]?)([A-Za-z_]\w*)\1", re.ASCII)
_WITH_HEREDOC: Final = frozenset({"RUN", "COPY", "ADD"})


class DockerfileError(ValueError):
    """A Dockerfile that can't be built here; its text is for the author."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its word in upper case, what follows it, and its lines, counted from 0."""

    word: str
    rest: str
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """The images that a file starts or copies from, each once; and, by the FROM's first and last line, which are where."""

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


def with_bases(text: str, bases: Bases, ids: Mapping[str, str]) -> str:
    """The same file where each FROM names its image by the id that it has in buildah's storage."""
    lines = text.splitlines()
    for item, image, stage in bases.froms:
        lines[item.first] = f"FROM {ids.get(image, image)}" + (f" AS {stage}" if stage else "")
        lines[item.first + 1 : item.end] = [""] * (item.end - item.first - 1)
    return "\n".join(lines) + "\n"


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a file, those that go over several lines in one.

    Raises `DockerfileError` for a here-document, which buildah 1.28 can't read.
    """
    lines = text.splitlines()
    escape = next((match[1] for line in lines[:1] if (match := _ESCAPE.fullmatch(line))), "\\")
    kept, first = "", 0
    for number, line in enumerate([*lines, ""]):
        is_last = number == len(lines)
        if not is_last and (not line.strip() or line.lstrip().startswith("#")):
            continue
        first = first if kept else number
        if not is_last and line.rstrip().endswith(escape):
            kept += line.rstrip()[:-1] + " "
            continue
        words = (kept + line).split(None, 1)
        kept = ""
        if not words:
            continue
        word, rest = words[0].upper(), "".join(words[1:]).strip()
        if word in _WITH_HEREDOC and _HEREDOC.search(rest):
            raise DockerfileError(f"line {first + 1} holds a here-document (<<), which buildah can't read")
        yield Instruction(word, rest, first, number + 1)


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
