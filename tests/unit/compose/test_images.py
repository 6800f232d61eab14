"""The images that a compose file runs, whatever else it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.images import service_images
from belljar.compose.task_files import DIRECTORY_KEY
from belljar.compose.words import CannotKeepError

DIGEST = "sha256:" + "1" * 64


def test_the_images_of_a_file() -> None:
    """In their normal form; what is built, what only means some Linux, and what is not known before
    there is a sample."""
    services: dict[str, Any] = {
        "a": {"image": "docker.io/library/python:3.12", "privileged": True, "devices": ["/dev/kvm"]},
        "b": {"image": f"x:1@{DIGEST}"},
        "c": {"image": "${IMAGE:-debian}"},
        "d": {"extends": "a"},
        "e": {"build": ".", "image": "p-e"},
        "f": {"image": "aisiuk/inspect-tool-support"},
        "g": {"image": "ghcr.io/a:${SAMPLE_METADATA_TAG}"},
        "h": {"image": "Not An Image"},
        "i": {"image": "resting", "profiles": ["x"]},
        "j": {"build": "."},
    }
    found = service_images({"services": services, "whatever": 1})
    assert [(each.service, each.image) for each in found if not each.why] == [
        ("a", "python:3.12"),
        ("b", f"x:1@{DIGEST}"),
        ("c", "debian"),
        ("d", "python:3.12"),
        ("e", "p-e"),
        ("f", "default"),
    ]
    assert [each.service for each in found if each.why] == ["g", "h", "j"]
    assert "SAMPLE_METADATA_TAG" in found[6].why


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(("services", "image", "build", "profiles", "extends", "a", "b")), inner, max_size=4
            )
        ),
        max_leaves=15,
    )
)
def test_any_document_has_images_or_is_refused(document: object) -> None:
    """`CannotKeepError`, or services with an image or a reason."""
    try:
        found = service_images({"services": document})
    except CannotKeepError:
        return
    assert all(bool(each.image) != bool(each.why) for each in found)


def test_what_is_built_says_how(tmp_path: Path) -> None:
    """Below the task's files; a context that leads out of them is a reason, and not read."""
    build = {"context": "./web", "dockerfile": "../D", "target": "run", "args": {"A": 1, "HOST": None}}
    services = {"a": {"image": "web", "build": build}, "b": {"image": "x", "build": "../../../../.."}}
    found, outside = service_images({"services": services, DIRECTORY_KEY: str(tmp_path)})
    assert found.build is not None
    assert (found.build.image, found.build.context, found.build.dockerfile) == ("web", "web", "D")
    assert (found.build.target, found.build.args) == ("run", {"A": "1"})
    assert outside.why


def test_a_file_without_services_is_refused() -> None:
    """There is nothing to get."""
    with pytest.raises(CannotKeepError):
        service_images({"services": {}})
