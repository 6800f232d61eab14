"""The command that makes an image's file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import PolicyError
from belljar.image import build
from belljar.image.build import RECIPES, build_packages, mmdebstrap_argv


def test_the_command_names_no_mirror_and_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's sources and options alone go in."""
    monkeypatch.setattr(build, "tool", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(build, "host_acquire_options", lambda: {"Acquire::http::Proxy": "p"})
    argv = mmdebstrap_argv(RECIPES["default"], "root")
    assert '--aptopt=Acquire::http::Proxy "p"' in argv
    assert not [word for word in argv if "http" in word.lower() and "Acquire" not in word]
    assert "belljar" not in " ".join(argv)


def test_what_is_no_package_reaches_no_shell(tmp_path: Path) -> None:
    """A word that is no package's name is refused before anything is built."""
    for word in ("jq; id", "-o=x", "a b", "$(id)", "a'b", "", "a\nb", "--pre"):
        for apt, pip in (([word], []), ([], [word])):
            with pytest.raises(PolicyError):
                build_packages(tmp_path, "x", base="default", apt=apt, pip=pip)
    assert not list(tmp_path.iterdir())
