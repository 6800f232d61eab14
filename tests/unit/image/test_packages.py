"""Packages on top of a base."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import PolicyError
from belljar.image.build import build_packages, pip_options


def test_what_is_no_package_reaches_no_shell(tmp_path: Path) -> None:
    """A word that is no package's name is refused before anything is built."""
    for word in ("jq; id", "-o=x", "a b", "$(id)", "a'b", "", "a\nb", "--pre"):
        for apt, pip in (([word], []), ([], [word])):
            with pytest.raises(PolicyError):
                build_packages(tmp_path, "x", base="default", apt=apt, pip=pip)
    assert not list(tmp_path.iterdir())


def test_a_local_index_is_left_out_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build sees no directory of this host, and says which index it does without."""
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nextra-index-url = file:///srv/simple\n  https://index.example\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    reported: list[str] = []
    options = pip_options(reported.append)
    assert "https://index.example" in options["extra-index-url"]
    assert "file:///srv/simple" not in options["extra-index-url"]
    assert any("file:///srv/simple" in line for line in reported)
