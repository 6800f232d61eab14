"""What of an image its container takes at its word: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.isolation.oci.trees import inner_tmp


@pytest.mark.parametrize("target", ["/etc", "x" * 300])
def test_an_images_link_is_not_followed_on_the_host(tmp_path: Path, target: str) -> None:
    """An image's /tmp that leads elsewhere counts as none, wherever it leads, and though following it would fail."""
    assert inner_tmp(tmp_path, "/new") == ""
    (tmp_path / "tmp").symlink_to(target)
    assert inner_tmp(tmp_path, "/new") == ""
    (tmp_path / "tmp").unlink()
    (tmp_path / "tmp").mkdir()
    assert inner_tmp(tmp_path, "/new") == "/new/tmp"
