"""Simulated endpoints: each kind answers the protocol it is named for, out of a range's own state,
and knows nobody it could ask.

A kind is a module with two functions. `make(context)` gives the thing that answers: an ASGI 3 app
(scopes `http` and `websocket`), or for a stream kind a coroutine function of reader, writer and
peer. All of a stand-in's state hangs on what `make` gave, so it ends with the range.
`check(settings, directory)` says what is wrong with the author's files, before anything is made.

Must not: open a socket, follow a link out of its files, evaluate an author's or a guest's text as
code, or hold anything without a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from belljar.errors import PolicyError
from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.documents import Faults

KINDS: Final[Mapping[str, str]] = {
    kind: f"belljar.network.stand_ins.{kind}"
    for kind in (
        *(
            "http",
            "openapi",
            "har",
            "metadata",
            "openai",
            "catch_all",
            "pypi",
            "npm",
            "debian",
            "git",
            "smtp",
        ),
        *("redis", "postgres", "mcp", "ssh"),
    )
}
# Kinds whose `make` gives a coroutine function of a stream instead of an ASGI app
STREAM_KINDS: Final = frozenset({"smtp", "redis", "postgres", "ssh"})

# Modules the fork server imports, where installed: a confined gateway has no files
PRELOAD: Final = (
    *KINDS.values(),
    "anyio._backends._asyncio",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "dulwich.midx",
    "dulwich.object_store",
    "dulwich.refs",
    "encodings.cp437",
    "encodings.utf_8_sig",
    "mmap",
    "zstandard",
    "jsonschema",
    "referencing.jsonschema",
    "ruamel.yaml",
)


def _module(kind: str) -> ModuleType:
    if kind not in KINDS:
        raise PolicyError(
            f"there is no stand-in of the kind {kind!r}",
            hint=f"the kinds are {', '.join(sorted(KINDS))}",
        )
    return import_module(KINDS[kind])


def make(kind: str, context: StandInContext) -> Any:  # noqa: ANN401
    """What answers for one stand-in. Raises `PolicyError` for an unknown kind or wrong files."""
    return _module(kind).make(context)


def check(kind: str, settings: Mapping[str, Any], directory: Path | None) -> Faults:
    """What is wrong with a stand-in's settings and files. Reads, never writes."""
    found: Faults = _module(kind).check(settings, directory)
    return found
