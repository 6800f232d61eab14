"""Which files are compose files, and reading them."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspect_ai.util._sandbox.compose import is_compose_yaml, is_dockerfile

from belljar.errors import PolicyError
from belljar.harness.compose_file import COMPOSE_NAMES, beside, is_compose_name, is_dockerfile_name, read_document


@pytest.mark.parametrize(
    "name",
    [
        *COMPOSE_NAMES,
        "web-compose.yaml",
        ".compose.yaml",
        "a/b/compose.yaml",
        "belljar.yaml",
        "policy.yaml",
        "Dockerfile",
        "high",
    ],
)
def test_names_are_inspects(name: str) -> None:
    """So that what Inspect forwards is understood as it was meant."""
    assert is_compose_name(name) is is_compose_yaml(name)
    assert is_dockerfile_name(name) is is_dockerfile(name)


def test_the_first_of_a_directory(tmp_path: Path) -> None:
    """In Inspect's order."""
    assert beside(tmp_path) is None
    for name in reversed(COMPOSE_NAMES):
        (tmp_path / name).touch()
        assert beside(tmp_path) == tmp_path / name


def test_anchors_and_merges(tmp_path: Path) -> None:
    """Compose files use them."""
    (tmp_path / "c.yaml").write_text("x-a: &a {init: true}\nservices:\n  d: {<<: *a, image: i}\n")
    assert read_document(tmp_path / "c.yaml")["services"]["d"] == {"init": True, "image": "i"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[1]", "is not"),
        (b"a: [", "can't be read"),
        (b"a: !reset x", "can't be read"),
        (b"#" * (1 << 20) + b"\na: 1", "too large"),
    ],
)
def test_what_is_none(content: bytes, said: str, tmp_path: Path) -> None:
    """Is refused with its path; one that is too long is not read in part."""
    path = tmp_path / "compose.yaml"
    path.write_bytes(content)
    with pytest.raises(PolicyError, match=said) as caught:
        read_document(path)
    assert caught.value.where == str(path)
