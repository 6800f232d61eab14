"""Simulated endpoints, each of a kind named for its protocol.

A kind answers from the range's own state and asks nobody. It is a module. Its `make(context)`
gives an ASGI 3 app (scopes `http` and `websocket`), or for a stream kind a coroutine function of
reader, writer and cell. All state hangs on it, so it ends with the range. Kinds with fields or
files of an author have a `check(settings, directory)`: it finds faults before anything is made.

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

STREAM_KINDS: Final = frozenset({"smtp", "redis", "postgres", "ssh"})
_WEB_KINDS: Final = ("http", "har", "metadata", "openai", "catch_all", "mcp")
_REGISTRIES: Final = ("pypi", "npm", "debian", "git")
KINDS: Final[Mapping[str, str]] = {
    kind: f"{__name__}.{kind}" for kind in (*_WEB_KINDS, *_REGISTRIES, *sorted(STREAM_KINDS))
}
# Modules the fork server imports, where installed: a confined gateway has no files
PRELOAD: Final = (
    *KINDS.values(),
    "anyio._backends._asyncio",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "dulwich.index",
    "dulwich.midx",
    "dulwich.object_store",
    "dulwich.refs",
    "email.message",
    "encodings.cp437",
    "encodings.utf_8_sig",
    "mmap",
    "zstandard",
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
    """Raises `PolicyError` for an unknown kind or wrong files."""
    return _module(kind).make(context)


def check(kind: str, settings: Mapping[str, Any], directory: Path | None) -> Faults:
    """Faults of an author's settings and files."""
    module = _module(kind)
    found: Faults = module.check(settings, directory) if hasattr(module, "check") else ()
    return found
