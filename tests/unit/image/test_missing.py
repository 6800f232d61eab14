"""Which images the store does not have, all of them at once, with what gets each."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import HostError
from belljar.image.config import ImageConfig
from belljar.image.store import Store, find_images, missing_images


def test_each_missing_image_has_its_command(tmp_path: Path) -> None:
    """Once each, in the order given; those of Belljar are made, others imported, a digest by its
    digest."""
    (tmp_path / "made").write_bytes(b"hsqs")
    store = Store(tmp_path)
    here = store.add(tmp_path / "made", ImageConfig(), name="here", source="", created="")
    digest = "sha256:" + "1" * 64
    missing = missing_images(
        store,
        ["ghcr.io/a/b:2", "here", f"here:1@{digest}", "default", "ghcr.io/a/b:2", "debian-dev"],
    )
    assert [(each.image, each.command) for each in missing] == [
        ("ghcr.io/a/b:2", "belljar image import docker://ghcr.io/a/b:2"),
        (f"here:1@{digest}", f"belljar image import docker://here@{digest}"),
        ("default", "belljar setup"),
        ("debian-dev", "belljar image build debian-dev"),
    ]
    assert find_images(store, ["here", "here:latest"]) == {"here": here, "here:latest": here}
    with pytest.raises(HostError) as refused:
        find_images(store, ["here", "one", "two"])
    assert all(
        f"belljar image import docker://{name}" in str(refused.value) for name in ("one", "two")
    )
