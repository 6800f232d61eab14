"""`belljar image`: listing, inspecting and removing, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cli.main import run
from belljar.image.config import ImageConfig
from belljar.image.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with one image, as `BELLJAR_HOME`."""
    home = tmp_path / "store"
    monkeypatch.setenv("BELLJAR_HOME", str(home))
    home.mkdir()
    (home / "new").write_bytes(b"hsqs" + bytes(4092))
    config = ImageConfig(user="u\x1b[31m", env={"A": "b"})
    Store(home).add(
        home / "new", config, name="small", source="made\nhere", created="2024-01-01T00:00:00Z"
    )
    return Store(home)


def test_a_name_moves_and_nothing_acts_on_the_terminal(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other image loses it; what a maker of images wrote is escaped."""
    assert run(["image", "tag", "small", "default"]) == 0
    (store.home / "new").write_bytes(b"hsqs" + bytes(8188))
    store.add(store.home / "new", ImageConfig(), name="big", source="", created="")
    assert run(["image", "tag", "big", "default"]) == 0
    assert store.find("default").digest == store.find("big").digest
    for words in (["ls"], ["inspect", "small"]):
        assert run(["image", *words]) == 0
    assert all(each.isprintable() for each in capsys.readouterr().out.splitlines())
