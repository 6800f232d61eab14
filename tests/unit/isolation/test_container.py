"""Containers: how an end is explained from what the host saw, and what of an image is trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.isolation.jail import JailEnd
from belljar.isolation.oci.container import ended_by_itself, explain_runtime, is_busy_sealing
from belljar.isolation.oci.trees import inner_tmp


@pytest.mark.promise("8.1")
@pytest.mark.parametrize("status", [0, 137])
def test_an_end_without_a_limit_says_what_is_known(status: int) -> None:
    """Who may have ended, its last word, how near the memory's limit was, what was refused; nothing
    that isn't known."""
    end = JailEnd(signal=None, status=status, cause="itself")
    told = ended_by_itself(end, kind="runsc", memory=(700 << 20, 704 << 20), refused_forks=3)
    for word in (
        "gVisor's sentry",
        f"status {status}",
        "700 MiB of 704 MiB",
        "refused it 3 processes",
    ):
        assert word in told
    told = ended_by_itself(end, kind="runc", memory=(0, 704 << 20), refused_forks=0)
    assert "its guest agent ended" in told
    assert "no limit is known to have been reached" in told
    assert not any(word in told for word in ("gVisor", "704", "refused"))


def test_a_silent_runtime_is_named() -> None:
    """Which runtime, which version, how it ended, and that it said nothing."""
    how = "ended with status 1, and printed nothing"
    told = explain_runtime(how, name="crun", version="1.8.1", where="cell c")
    assert f"crun 1.8.1 {how}" in told.what
    assert "BELLJAR_OCI_RUNTIME" in told.hint
    assert (
        "BELLJAR" not in explain_runtime(how, name="runsc", version="20240729", where="cell c").hint
    )


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
