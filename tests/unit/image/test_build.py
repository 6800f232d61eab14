"""Packages that are added to an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import PolicyError
from belljar.image.build import build_packages


def test_what_is_no_package_reaches_no_shell(tmp_path: Path) -> None:
    """A word that is no package's name is refused before anything is built."""
    for word in ("jq; id", "-o=x", "a b", "$(id)", "a'b", "", "a\nb", "--pre"):
        for apt, pip in (([word], []), ([], [word])):
            with pytest.raises(PolicyError):
                build_packages(tmp_path, "x", base="default", apt=apt, pip=pip)
    assert not list(tmp_path.iterdir())
