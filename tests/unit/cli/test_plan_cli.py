"""`belljar plan`, on this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cli.main import run
from belljar.isolation.trials import find_facts
from belljar.plan.obstacles import tier_obstacles
from belljar.policy.limits import Tier


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without an image or a kernel, on a host where microVMs can run; the tools' versions
    are asked for once."""
    home = tmp_path_factory.mktemp("plan") / "store"
    if obstacles := tier_obstacles(Tier.MICROVM, find_facts(home)):
        pytest.skip(f"this host can't run microVMs: {obstacles[0].code}")
    return home


@pytest.fixture(autouse=True)
def _empty_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_HOME", str(store))


def test_what_this_host_can_not_do_exits_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason and the hint; nothing on standard output."""
    (tmp_path / "large.yaml").write_text(
        "belljar: 1\nrisk: high\nresources: {memory: 256GiB, disk: 256GiB}\n"
    )
    assert run(["plan", "--no-prove", str(tmp_path / "large.yaml")]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert "resources.memory" in told.err
    assert "hint: lower `memory`" in told.err
