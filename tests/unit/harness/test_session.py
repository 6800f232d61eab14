"""What the cells of one evaluation share."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import HostError
from belljar.harness.session import RealCells
from belljar.image.config import ImageConfig
from belljar.image.store import Store
from belljar.policy import load_policy


def add(home: Path, name: str, content: bytes) -> None:
    """An image of a few bytes, to which the name then belongs."""
    home.mkdir(exist_ok=True)
    (home / "rootfs").write_bytes(content)
    Store(home).add(home / "rootfs", ImageConfig(), name=name, source="test", created="")


def test_an_image_is_the_same_for_all_samples_of_a_run(tmp_path: Path) -> None:
    """A name that another command gives to another image meanwhile is an error for the samples that
    follow, and what another run begins with."""
    home, cells = tmp_path / "home", RealCells()
    add(home, "team/tool", b"one")
    (tmp_path / "p.yaml").write_text("belljar: 1\nrisk: low\nimage: team/tool\n")
    policy = load_policy(tmp_path / "p.yaml")
    cells.check_unchanged(policy, home=home)
    cells.check_unchanged(policy, home=home)
    add(home, "team/tool", b"two")
    with pytest.raises(HostError, match="team/tool"):
        cells.check_unchanged(policy, home=home)
    RealCells().check_unchanged(policy, home=home)
