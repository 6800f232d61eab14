"""The containment tests, read from `catalogue.toml` at first import."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from belljar.probe.model import Probe, Witness

# The one group that is not about containment: it finds what tells a program where it is.
FINGERPRINT: Final = "fingerprint"


def _read(text: str) -> tuple[Probe, ...]:
    probes: list[Probe] = []
    for group, tables in tomllib.loads(text).items():
        for name, fields in tables.items():
            witness = Witness(fields.pop("witness")) if "witness" in fields else None
            probes.append(Probe(name=f"{group}.{name}", witness=witness, **fields))
    return tuple(probes)


PROBES: Final = _read(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
