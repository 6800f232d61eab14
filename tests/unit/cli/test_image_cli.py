"""`belljar image`: listing, inspecting and removing, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.images import put_image

from belljar.cli.main import run
from belljar.image.config import ImageConfig
from belljar.image.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    config = ImageConfig(user="u\x1b[31m", env={"A": "b"})
    put_image(tmp_path, "small", b"hsqs", config, source="made\nhere")
    return Store(tmp_path)


def test_a_name_moves_and_nothing_acts_on_the_terminal(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other image loses it; what a maker of images wrote is escaped."""
    assert run(["image", "tag", "small", "default"]) == 0
    put_image(store.home, "big", b"another")
    assert run(["image", "tag", "big", "default"]) == 0
    assert store.find("default").digest == store.find("big").digest
    for words in (["ls"], ["inspect", "small"]):
        assert run(["image", *words]) == 0
    assert all(each.isprintable() for each in capsys.readouterr().out.splitlines())
