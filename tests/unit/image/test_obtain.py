"""In which order an image is looked for, and that the failure of one hides no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.compose.data import ServiceBuild
from belljar.errors import HostError
from belljar.image.config import ImageConfig
from belljar.image.oci import ImportLimits, WantedImage, obtain
from belljar.image.store import Store

ID = "sha256:" + "1" * 64


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked for, of sources that have nothing."""
    refs: list[str] = []

    def fail(_home: Path, ref: str, **_kwargs: Any) -> None:  # noqa: ANN401 - its own
        refs.append(ref)
        raise HostError(f"not at {ref}")

    monkeypatch.setattr("belljar.image.oci.import_image", fail)
    return refs


@pytest.mark.parametrize("has_daemon", [False, True])
def test_a_daemon_is_asked_before_a_registry(
    has_daemon: bool, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has is skipped, what is built or known by id alone is no registry's, and each
    failure has its reason."""
    programs = ("docker",) if has_daemon else ()
    monkeypatch.setattr("belljar.image.oci.daemon_programs", lambda: programs)
    (tmp_path / "made").write_bytes(b"hsqs")
    Store(tmp_path).add(tmp_path / "made", ImageConfig(), name="here", source="", created="")
    recipe = ServiceBuild(image="p-built", root="/", context=".", dockerfile="D", args={})
    wanted = [
        WantedImage(image="here"),
        WantedImage(image="python:3.12"),
        WantedImage(image="p-built", build=recipe, bases=("python:3.12", "base")),
        WantedImage(image=ID),
        WantedImage(image="default"),
        WantedImage(image="service x", why="nobody knows"),
    ]

    def build(one: WantedImage, _report: object) -> None:
        asked.append(f"build {one.image}")
        raise HostError("no buildah")

    results = list(
        obtain(
            tmp_path,
            wanted,
            limits=ImportLimits(),
            build=build,
        )
    )
    assert [result.wanted for result in results] == [
        *wanted[:2],
        WantedImage(image="base"),
        *wanted[2:],
    ]
    assert results[0].was_there
    assert all(result.error is not None for result in results[1:])
    daemon = (
        [f"docker-daemon:{name}" for name in ("python:3.12", "p-built", "base")]
        if has_daemon
        else []
    )
    assert sorted(asked) == sorted(
        [*daemon, "docker://python:3.12", "docker://base", "build p-built", "build default"]
    )
    assert asked.index("docker://base") < asked.index("build p-built")
    errors = {result.wanted.image: result.error for result in results if result.error}
    if has_daemon:  # what it said is not hidden by what the registry said
        assert "not at docker-daemon:python:3.12" in errors["python:3.12"].what
    assert errors["p-built"].what == "no buildah"
    assert errors["default"].what == "no buildah"
