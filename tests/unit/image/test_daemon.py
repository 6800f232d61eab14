"""Whatever Docker's or Podman's program says does no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.registry import Docker, docker

from belljar.errors import HostError
from belljar.image.daemon import ask_daemons, daemon_programs


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Docker's program alone."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return docker(tmp_path / "bin", monkeypatch)


def test_a_program_counts_when_its_daemon_answers(
    there: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs, or that has no daemon, is not waited for again."""
    podman = docker(tmp_path / "podman", monkeypatch, "podman")
    assert daemon_programs() == (str(there.directory / "docker"), str(podman.directory / "podman"))
    (podman.directory / "podman").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr("belljar.image.daemon._PING_S", 0.5)
    there.hang("version")
    assert daemon_programs() == ()


@pytest.mark.promise("1.8")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    answer=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.text(max_size=10), lambda inner: st.lists(inner, max_size=4)
        ).map(lambda value: json.dumps(value).encode()),
        st.just(b"[" * 100_000),
    )
)
def test_whatever_it_answers_is_an_image_or_one_error(
    answer: bytes, there: Docker, tmp_path: Path
) -> None:
    """Bytes that are no JSON, or no image: a `HostError` that can be shown."""
    there.answer("x", answer)
    with pytest.raises(HostError) as caught:
        ask_daemons(("x",), tmp_path, timeout_s=5)
    assert str(caught.value).isprintable() or "\n  hint: " in str(caught.value)


def test_an_id_is_all_that_is_needed(there: Docker, tmp_path: Path) -> None:
    """Podman leaves `sha256:` out; names that are none are left out."""
    there.answer("x", json.dumps(["1" * 64, None, ["a@sha256:1", 3]]).encode())
    found = ask_daemons(("x",), tmp_path, timeout_s=5)
    assert (found.image_id, found.names, found.digests) == (f"sha256:{'1' * 64}", (), ())
