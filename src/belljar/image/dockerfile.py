"""A Dockerfile's base images, and its text as buildah 1.28 can read it. Pure.

buildah 1.28 lacks here-documents: `RUN`'s becomes the script of the stage's shell, `COPY`'s and
`ADD`'s a file of a separate context.

Source: the Dockerfile reference and BuildKit's "Here-Documents": an opener is a whole word; a lone
document is the shell's script, or a program if it begins with `#!`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MAX_BYTES: Final = 1 << 20
"""Of a Dockerfile."""
# Of an argument or a base: arguments that name each other grow with each line.
_MAX_VALUE_CHARS: Final = 4096
_ESCAPE: Final = re.compile(r"#\s*escape\s*=\s*([\\`])\s*", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^{}]*))?\})", re.ASCII)
_WITH_HEREDOC: Final = frozenset({"RUN", "COPY", "ADD"})
_SHELL: Final = ("/bin/sh", "-c")
_WORD: Final = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\])+""")
_OPENER: Final = re.compile(r"\d*<<(-?)(['\"]?)([A-Za-z_][\w.-]*)\2", re.ASCII)
_LIKE_OPENER: Final = re.compile(r"\d*<<-?[^<\s-][^<]*")
_OPTIONS: Final = re.compile(r"(?:--\S+\s+)*")
_TABS: Final = re.compile(r"^\t+", re.MULTILINE)
_PROGRAMS: Final = "/dev/pipes"


class DockerfileError(ValueError):
    """The text is for the Dockerfile's author."""


@dataclass(frozen=True, slots=True)
class Heredoc:
    """The opening word, and the lines as written."""

    opener: str
    name: str
    body: str
    is_literal: bool
    strips_tabs: bool

    @property
    def text(self) -> str:
        """What a file of it holds."""
        return _TABS.sub("", self.body) if self.strips_tabs else self.body


@dataclass(frozen=True, slots=True)
class HeredocFile:
    """A file in the context of here-documents."""

    path: str
    text: str
    mode: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """Lines `first` to `end` count from 0."""

    word: str
    rest: str
    first: int
    end: int
    heredocs: tuple[Heredoc, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """Images started or copied from; each FROM's image and stage."""

    images: tuple[str, ...]
    froms: tuple[tuple[Instruction, str, str], ...]


def base_images(text: str, args: Mapping[str, str], *, target: str = "") -> Bases:
    """The images used up to stage `target`. Raises `DockerfileError`."""
    known, stages, found = dict[str, str](), set[str](), list[str]()
    froms: list[tuple[Instruction, str, str]] = []
    for item in instructions(text):
        if item.word == "ARG" and not froms:
            name, _, default = item.rest.partition("=")
            known[name.strip()] = args.get(
                name.strip(), _filled(default.strip().strip("\"'"), known)
            )
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
    """A Dockerfile for buildah; the context `heredoc_context` holds `files`."""

    text: str
    heredoc_context: str
    files: tuple[HeredocFile, ...]


def make_buildable(
    text: str,
    bases: Bases,
    ids: Mapping[str, str],
    shells: Mapping[str, Sequence[str]] | None = None,
) -> Buildable:
    """The file for buildah, where each FROM names its image by its id in buildah's storage.

    `shells`: of the base images, default `/bin/sh -c`. Raises `DockerfileError`.
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
            options = match[0] if (match := _OPTIONS.match(item.rest)) else ""
            rest, translate = item.rest[len(options) :], _run if item.word == "RUN" else _copy
            new, more = translate(item, options, rest, shell, context)
            files += more
        if stage:
            stages[stage.lower()] = shell
        if new is not None:
            blank = [""] * (item.end - item.first - 1)
            lines[item.first : item.end] = ["\n".join(new), *blank]
    return Buildable(text="\n".join(lines) + "\n", heredoc_context=context, files=tuple(files))


def instructions(text: str) -> Iterator[Instruction]:
    """Raises `DockerfileError` for a broken here-document."""
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
            heredocs, number = _read_heredocs(rest, lines, number)
        yield Instruction(word, rest, first, min(number, len(lines)), heredocs)


def _lines(text: str) -> list[str]:
    """As Docker counts: other Unicode line breaks are none."""
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
        raise DockerfileError(
            f"`FROM {words[0]}` names no image: give the argument with --build-arg"
        )
    return image, words[2] if len(words) > 1 else ""


def _sources(item: Instruction) -> Iterator[str]:
    """Images copied or mounted from. A number is a stage."""
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
        raise DockerfileError(
            f"a value before its first stage has more than {_MAX_VALUE_CHARS:,} characters"
        )
    return filled


def _read_heredocs(rest: str, lines: Sequence[str], at: int) -> tuple[tuple[Heredoc, ...], int]:
    """Documents opened at line `at`, and the line after them."""
    found = []
    for word in _WORD.findall(rest):
        opener = _OPENER.fullmatch(word)
        if opener is None:
            if _LIKE_OPENER.fullmatch(word):
                raise DockerfileError(f"the here-document {word!r} has no plain word as its name")
            continue
        begin, strips_tabs = at, bool(opener[1])
        while (
            at < len(lines) and (lines[at].lstrip("\t") if strips_tabs else lines[at]) != opener[3]
        ):
            at += 1
        if at == len(lines):
            raise DockerfileError(
                f"the here-document {word!r} has no end: a line with {opener[3]} alone"
            )
        body = "".join(f"{line}\n" for line in lines[begin:at])
        found.append(Heredoc(word, opener[3], body, bool(opener[2]), strips_tabs))
        at += 1
    return tuple(found), at


def _run(
    item: Instruction, options: str, rest: str, shell: Sequence[str], context: str
) -> tuple[list[str], list[HeredocFile]]:
    """Equivalent one-line instructions, and the files they take."""
    command, heredocs, directory = rest.strip(), item.heredocs, item.first
    only = heredocs[0] if command == heredocs[0].opener else None
    if only is not None and only.text.startswith("#!"):
        file = HeredocFile(f"{directory}/{only.name}", only.text, 0o755)
        source = f"from={context},source=/{directory}"
        mount = f"--mount=type=bind,{source},target={_PROGRAMS}"
        return [f"RUN {options}{mount} {json.dumps([f'{_PROGRAMS}/{only.name}'])}"], [file]
    documents = "".join(f"{each.body}{each.name}\n" for each in heredocs)
    script = f"{command}\n{documents}" if only is None else only.text
    return [f"RUN {options}{json.dumps([*shell, script])}"], []


def _copy(
    item: Instruction, options: str, rest: str, _shell: Sequence[str], context: str
) -> tuple[list[str], list[HeredocFile]]:
    """As `_run`. Raises `DockerfileError` for inexact translations."""
    word, heredocs, directory = item.word, item.heredocs, item.first
    *sources, destination = _WORD.findall(rest)
    by_opener = {each.opener: each for each in heredocs}
    if not sources or destination in by_opener:
        raise DockerfileError(f"a {word} with a here-document needs a destination")
    if "--from=" in options:
        raise DockerfileError(f"a {word} with a here-document can't have --from")
    if len(sources) > 1 and not destination.endswith("/"):
        raise DockerfileError(f"the destination of several files must end with /: {destination}")
    for each in heredocs:
        if not each.is_literal and "$" in each.body:
            what = f"a {word} of the here-document {each.opener} would fill in variables"
            raise DockerfileError(f"{what}: write <<'{each.name}', or copy a file")
    lines = []
    if plain := [source for source in sources if source not in by_opener]:
        lines.append(f"{word} {options}{' '.join(plain)} {destination}")
    for each in heredocs:
        path = f"{directory}/{each.name}"
        lines.append(f"COPY {options}--from={context} {path} {destination}")
    files = [HeredocFile(f"{directory}/{each.name}", each.text, 0o644) for each in heredocs]
    return lines, files
