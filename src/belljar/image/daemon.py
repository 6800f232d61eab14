"""Asking Docker or Podman for an image, by their own programs, which know where their daemon is.

What they give is bounded in time and bytes, and believed no more than an archive from elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.image.tools import plain_env, run_tool, tool
from belljar.units import printable

DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
# Podman's own field is `ID`: it knows `{{.Id}}` and nothing longer.
_FACTS: Final = '["{{.Id}}",{{json .RepoTags}},{{json .RepoDigests}}]'
_PING_S: Final = 5
_MAX_ANSWER_BYTES: Final = 4 << 20
# Of the program, which keeps what its daemon says.
_MAX_DATA_BYTES: Final = 2 << 30
_ANSWER: Final = "answer"
# A limit of files would bound Podman's own database, too.
_BOUNDED: Final = (
    f'{{ "$@"; echo $? >status; }} | head -c {_MAX_ANSWER_BYTES} >{_ANSWER}; exit "$(cat status)"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonImage:
    """`program`: who has it. `digests`: those of its registry manifests."""

    program: str
    image_id: str
    names: tuple[str, ...]
    digests: tuple[str, ...]


def daemon_programs() -> tuple[str, ...]:
    """Return the programs that are here and whose daemon, if they need one, answers."""
    found = list[str]()
    for program in _installed():
        with suppress(HostError):
            run_tool([program, "version"], timeout_s=_PING_S)
            found.append(program)
    return tuple(found)


def _installed() -> list[str]:
    """Return the programs that are here; `$DOCKER_HOST` names a daemon that Podman doesn't ask."""
    programs = ("docker",) if os.environ.get("DOCKER_HOST") else ("docker", "podman")
    return [path for path in map(shutil.which, programs) if path]


def ask_daemons(names: Sequence[str], work: Path, *, timeout_s: float) -> DaemonImage:
    """Return the image of the first program that has one of the names, tried in their order.

    `work`: an own directory. Raises `HostError`.
    """
    name, failures = names[0], []
    for program, each in product(_installed(), names):
        try:
            return _ask(program, each, work, timeout_s=timeout_s)
        except (OSError, ValueError, RecursionError, HostError) as error:
            why = error.what if isinstance(error, HostError) else "its answer can't be read"
            failures.append(f"{Path(program).name}: {why}")
    what = "; ".join(failures) or "neither `docker` nor `podman` is installed"
    raise HostError(
        f"no daemon gave the image {printable(name)!r}: {printable(what, max_chars=600)}",
        where=f"docker-daemon:{printable(name)}",
        hint=f"check DOCKER_HOST and the name, or fetch it: `belljar image import "
        f"docker://{printable(name)}`",
    )


def _ask(program: str, name: str, work: Path, *, timeout_s: float) -> DaemonImage:
    limits = [tool("prlimit"), f"--data={_MAX_DATA_BYTES}", "--core=0", "--"]
    ask = [program, "image", "inspect", "--format", _FACTS, name]
    bounded = ["/bin/sh", "-c", _BOUNDED, "sh", *limits, *ask]
    run_tool(bounded, timeout_s=timeout_s, env=plain_env(), cwd=work)
    answer = work / _ANSWER
    found = json.loads(answer.read_bytes())
    answer.unlink()
    if not isinstance(found, list) or len(found) != 3:
        raise ValueError("not the three facts")
    image_id = f"sha256:{str(found[0]).removeprefix('sha256:')}"
    if DIGEST.fullmatch(image_id) is None:
        raise ValueError("no id of an image")
    digests = [text.rpartition("@")[2] for text in _texts(found[2])]
    return DaemonImage(
        program=program,
        image_id=image_id,
        names=tuple(_texts(found[1])),
        digests=tuple(digest for digest in digests if DIGEST.fullmatch(digest)),
    )


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
