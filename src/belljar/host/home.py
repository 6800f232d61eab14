"""Where Belljar keeps its store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

HOME_VARIABLE: Final = "BELLJAR_HOME"


def belljar_home(environ: Mapping[str, str] | None = None, *, uid: int | None = None) -> Path:
    """The store's directory, which need not exist: `$BELLJAR_HOME`; else root's is /var/lib/belljar and a user's is under `$XDG_DATA_HOME`.

    Absolute. A relative `$XDG_DATA_HOME` is ignored, as its specification says; a relative `$BELLJAR_HOME` is taken from the working directory.
    """
    env = os.environ if environ is None else environ
    if chosen := env.get(HOME_VARIABLE):
        return Path(chosen).expanduser().absolute()
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/belljar")
    data = Path(env.get("XDG_DATA_HOME", ""))
    return (data if data.is_absolute() else Path(env.get("HOME") or Path.home()) / ".local" / "share") / "belljar"
