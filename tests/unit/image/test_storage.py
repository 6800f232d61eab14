"""Bases that builds of one store share."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from belljar.image import storage
from belljar.image.tools import draw_first_id


@pytest.mark.root
def test_two_first_builds_at_once_have_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second build waits for what the first one draws."""
    drawn = [draw_first_id(), draw_first_id()]
    seen: list[int] = []
    second = threading.Thread(target=lambda: seen.append(storage.first_id_of(tmp_path)))

    def draw() -> int:
        if second.ident is None:
            second.start()
            second.join(0.3)  # without the lock it ends here, with the other id
        return drawn.pop()

    monkeypatch.setattr(storage, "draw_first_id", draw)
    seen.append(storage.first_id_of(tmp_path))
    second.join()
    assert seen[0] == seen[1]
