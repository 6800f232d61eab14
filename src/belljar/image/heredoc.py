"""Here-documents of a Dockerfile, in instructions without any: buildah 1.28 can't read them. Pure.

A `RUN`'s becomes the script of the stage's shell; a `COPY`'s or `ADD`'s becomes a file of a context
of their own, so that no other instruction sees it.

Source: the Dockerfile reference, "Here-Documents", and BuildKit's reading of it: an opener is a
whole word; a lone document is the shell's script, or a program if it begins with `#!`; any other is
handed to the shell with its command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_WORD: Final = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\])+""")
_OPENER: Final = re.compile(r"\d*<<(-?)(['\"]?)([A-Za-z_][\w.-]*)\2", re.ASCII)
_LIKE_OPENER: Final = re.compile(r"\d*<<-?[^<\s-][^<]*")
_OPTIONS: Final = re.compile(r"(?:--\S+\s+)*")
_TABS: Final = re.compile(r"^\t+", re.MULTILINE)
_PROGRAMS: Final = "/dev/pipes"


class DockerfileError(ValueError):
    """A Dockerfile that can't be built here; its text is for the author."""


@dataclass(frozen=True, slots=True)
class Heredoc:
    """One here-document: the word that opens it, and its lines as they stand in the file."""

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
    """A file that the translated instructions take from the context of here-documents."""

    path: str
    text: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a translation depends on: the stage's shell, the context's name, and a directory in it."""

    shell: Sequence[str]
    context: str
    directory: str


def read_heredocs(rest: str, lines: Sequence[str], at: int) -> tuple[tuple[Heredoc, ...], int]:
    """The documents that an instruction opens, from line `at` on, and the line behind the last.

    Raises `DockerfileError` for one without an end.
    """
    found = []
    for word in _WORD.findall(rest):
        opener = _OPENER.fullmatch(word)
        if opener is None:
            if _LIKE_OPENER.fullmatch(word):
                raise DockerfileError(f"the here-document {word!r} has no plain word as its name")
            continue
        begin, strips_tabs = at, bool(opener[1])
        while at < len(lines) and (lines[at].lstrip("\t") if strips_tabs else lines[at]) != opener[3]:
            at += 1
        if at == len(lines):
            raise DockerfileError(f"the here-document {word!r} has no end: a line with {opener[3]} alone")
        body = "".join(f"{line}\n" for line in lines[begin:at])
        found.append(Heredoc(word, opener[3], body, bool(opener[2]), strips_tabs))
        at += 1
    return tuple(found), at


def translate(
    word: str, rest: str, heredocs: Sequence[Heredoc], around: Surroundings
) -> tuple[list[str], list[HeredocFile]]:
    """The same as instructions of one line each, and the files that they take.

    Raises `DockerfileError` for what can't be kept exactly.
    """
    options = match[0] if (match := _OPTIONS.match(rest)) else ""
    if word == "RUN":
        return _run(options, rest[len(options) :].strip(), heredocs, around)
    return _copy(word, options, _WORD.findall(rest[len(options) :]), heredocs, around)


def _run(
    options: str, command: str, heredocs: Sequence[Heredoc], around: Surroundings
) -> tuple[list[str], list[HeredocFile]]:
    only = heredocs[0] if command == heredocs[0].opener else None
    if only is not None and only.text.startswith("#!"):
        file = HeredocFile(f"{around.directory}/{only.name}", only.text, 0o755)
        source = f"from={around.context},source=/{around.directory}"
        mount = f"--mount=type=bind,{source},target={_PROGRAMS}"
        return [f"RUN {options}{mount} {json.dumps([f'{_PROGRAMS}/{only.name}'])}"], [file]
    documents = "".join(f"{each.body}{each.name}\n" for each in heredocs)
    script = f"{command}\n{documents}" if only is None else only.text
    return [f"RUN {options}{json.dumps([*around.shell, script])}"], []


def _copy(
    word: str, options: str, words: Sequence[str], heredocs: Sequence[Heredoc], around: Surroundings
) -> tuple[list[str], list[HeredocFile]]:
    *sources, destination = words
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
        path = f"{around.directory}/{each.name}"
        lines.append(f"COPY {options}--from={around.context} {path} {destination}")
    files = [HeredocFile(f"{around.directory}/{each.name}", each.text, 0o644) for each in heredocs]
    return lines, files


__all__ = ["DockerfileError", "Heredoc", "HeredocFile", "Surroundings", "read_heredocs", "translate"]
