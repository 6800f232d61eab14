"""A session of fake cells around the provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.cell import FakeCells

from belljar.harness.session import Session, session_scope
from belljar.host import settings


@pytest.fixture
def cells() -> FakeCells:
    return FakeCells()


@pytest.fixture
def session(cells: FakeCells, tmp_path: Path) -> Iterator[Session]:
    with session_scope(Session(source=cells, home=tmp_path / "home")) as scoped:
        yield scoped


@pytest.fixture(autouse=True)
def _no_random_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect waits up to a second before each sample, for the sake of other tasks: not here."""
    monkeypatch.setattr("inspect_ai._eval.task.sandbox.random", lambda: 0.0, raising=False)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment that this process was started with: no settings and policy of this host's."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    monkeypatch.setattr(settings, "environment_at_start", lambda: environ)
    monkeypatch.setattr(settings, "HOST_FILE", tmp_path / "settings.yaml")
    monkeypatch.delenv("BELLJAR_POLICY", raising=False)
    return environ
