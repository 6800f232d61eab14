"""Reading a Dockerfile with BuildKit's own parser (the package `dockerfile`), in a process apart.

The parser is a Go library: hostile text can crash it or keep it busy for minutes, and its threads
would stay in a process that forks.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

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
    """`line` counts from 1; `heredocs` are names with their lines as written."""

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
    """The instructions of a Dockerfile. Raises `DockerfileError`."""
    text = text.removeprefix("\ufeff")
    # Only files for Windows have another one, which directives before all else name.
    if _ESCAPE.match(text):
        raise DockerfileError("`# escape=` is not read: use a backslash")
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise DockerfileError("it is not UTF-8") from None
    if len(raw) > MAX_BYTES:
        raise DockerfileError("it is larger than 1 MiB")
    if b"\0" in raw:
        raise DockerfileError("it contains a NUL byte")
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
