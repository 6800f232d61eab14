"""Containers: which failed start may pass by itself, and what of an image is trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.isolation.oci.container import is_busy_sealing
from belljar.isolation.oci.trees import inner_tmp


@pytest.mark.parametrize(
    ("diagnosis", "busy"),
    [
        (
            "FATAL: nsexec[2]: could not ensure we are a cloned binary: Device or resource busy",
            True,
        ),
        (
            (
                "unable to create new parent process: could not seal fd: fcntl(F_ADD_SEALS): device"
                " or resource busy"
            ),
            True,
        ),
        ("nsexec: could not ensure we are a cloned binary: Permission denied", False),
        ("mount: Device or resource busy", False),
        ("", False),
    ],
)
def test_a_runtime_whose_copy_could_not_be_sealed_yet(diagnosis: str, busy: bool) -> None:
    """Only that failure, of runc 1.1 and of later ones, may pass by itself."""
    assert is_busy_sealing(diagnosis) is busy


@pytest.mark.parametrize("target", ["/etc", "x" * 300])
def test_an_images_link_is_not_followed_on_the_host(tmp_path: Path, target: str) -> None:
    """An image's /tmp that leads elsewhere counts as none, wherever it leads, and though following
    it would fail."""
    assert inner_tmp(tmp_path, "/new") == ""
    (tmp_path / "tmp").symlink_to(target)
    assert inner_tmp(tmp_path, "/new") == ""
    (tmp_path / "tmp").unlink()
    (tmp_path / "tmp").mkdir()
    assert inner_tmp(tmp_path, "/new") == "/new/tmp"
