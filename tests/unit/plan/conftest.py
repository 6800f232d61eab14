"""Hosts and images to plan for; `BELLJAR_UPDATE_GOLDEN=1` writes the golden files anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.hosts import capable_host, image_with_a_user

from belljar.host.model import HostFacts
from belljar.plan.model import ImageFacts

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "BELLJAR_UPDATE_GOLDEN"


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares a text with a golden file, or writes it when asked to."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if os.environ.get(UPDATE):
            file.write_text(text)
        assert text == file.read_text(), f"{file.name} differs; {UPDATE}=1 writes it anew"

    return compare


@pytest.fixture
def facts() -> HostFacts:
    """Root on a host with proven KVM and every control group."""
    return capable_host()


@pytest.fixture
def image() -> ImageFacts:
    return image_with_a_user()
