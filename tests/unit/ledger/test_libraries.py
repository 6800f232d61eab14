"""Versions of the libraries that read hostile bytes."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

from belljar.ledger.rundir import LIBRARIES, create_run, library_versions


def test_the_versions_are_those_that_python_imports(tmp_path: Path) -> None:
    """As the standard library tells them; the first place on the path counts, and what can't be
    read is passed by."""
    installed = {
        str(one.name).lower().replace("_", "-").replace(".", "-"): one
        for one in importlib.metadata.distributions()
    }
    expected = {name: installed[name].version for name in LIBRARIES if name in installed}
    assert library_versions() == expected
    for place, name in (
        ("a", "H11-1.0.dist-info"),
        ("b", "h11-2.0.dist-info"),
        ("b", "ruamel.yaml-0.5.dist-info"),
    ):
        (tmp_path / place / name).mkdir(parents=True)
    path = [str(tmp_path / place) for place in ("none", "a", "b")]
    assert library_versions(path) == {"h11": "1.0", "ruamel-yaml": "0.5"}


def test_a_runs_record_has_them(tmp_path: Path) -> None:
    """In `run.started`, which the chain covers."""
    with create_run(tmp_path, "exec", ["belljar"]) as run:
        pass
    first = json.loads((run.path / "ledger.jsonl").read_text().splitlines()[0])
    assert first["data"]["libraries"] == library_versions()
    assert {"cryptography", "pydantic-core", "ruamel-yaml"} <= set(first["data"]["libraries"])
