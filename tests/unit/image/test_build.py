"""The command that makes an image's file system."""

from __future__ import annotations

import pytest

from belljar.image import build
from belljar.image.build import RECIPES, mmdebstrap_argv


def test_the_command_names_no_mirror_and_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's sources and options alone go in."""
    monkeypatch.setattr(build, "tool", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(build, "host_acquire_options", lambda: {"Acquire::http::Proxy": "p"})
    argv = mmdebstrap_argv(RECIPES["default"], "root")
    assert '--aptopt=Acquire::http::Proxy "p"' in argv
    assert not [word for word in argv if "http" in word.lower() and "Acquire" not in word]
    assert "belljar" not in " ".join(argv)
