"""Simulated endpoints: each kind is a module, whose `make(context)` returns a function.

All state hangs on it. A stand-in asks nobody, opens no socket, follows no link out of its
files, and holds nothing without a bound; an author's text runs in Jinja2's sandbox alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from belljar.errors import HostError
from belljar.network.stand_ins.web import StandInContext
from belljar.plan.obstacles import NETWORK_EXTRA_HINT

STREAM_KINDS: Final = frozenset({"smtp", "redis", "postgres", "ssh"})
# Imported only while a kind answers. A confined gateway has no files to import them from.
_IMPORTED_LATE: Final[Mapping[str, tuple[str, ...]]] = {
    "http": ("anyio._backends._asyncio", "encodings.unicode_escape", "jinja2.debug"),
    "har": ("anyio._backends._asyncio",),
    "pypi": ("bz2", "encodings.cp437"),
    "npm": ("bz2",),
    "debian": ("bz2", "email._encoded_words", "email.iterators", "email.message"),
    "git": ("dulwich.midx", "mmap"),
}


def modules_of(kinds: Iterable[str]) -> list[str]:
    return [
        name for kind in kinds for name in (f"{__name__}.{kind}", *_IMPORTED_LATE.get(kind, ()))
    ]


def _module(kind: str) -> ModuleType:
    try:
        return import_module(f"{__name__}.{kind}")
    except ModuleNotFoundError as error:
        what = f"a stand-in of kind `{kind}` needs the Python package {error.name}"
        raise HostError(what, hint=NETWORK_EXTRA_HINT) from error


def make(kind: str, context: StandInContext) -> Any:  # noqa: ANN401
    return _module(kind).make(context)


def check(kind: str, settings: Mapping[str, Any], directory: Path | None) -> Any:  # noqa: ANN401
    """Return `files.Faults` of an author's settings and files."""
    module = _module(kind)
    return module.check(settings, directory) if hasattr(module, "check") else ()
