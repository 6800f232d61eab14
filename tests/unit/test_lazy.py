"""Packages whose names are imported late: what they offer, and that a name means one thing."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import belljar

FRONTS = ("cell", "host", "image", "image.layers", "isolation", "isolation.microvm", "isolation.oci", "ledger", "plan")


@pytest.mark.parametrize("front", FRONTS)
def test_every_public_name_is_found_and_no_submodule_has_it(front: str) -> None:
    """Each name of `__all__` is imported when it is used; one that a submodule has, too, would mean
    either."""
    package = import_module(f"belljar.{front}")
    folder = Path(belljar.__file__).parent / front.replace(".", "/")
    submodules = {path.stem for path in folder.iterdir()}
    assert [name for name in package.__all__ if not hasattr(package, name) or name in submodules] == []


@pytest.mark.parametrize("front", FRONTS)
def test_another_name_is_no_attribute(front: str) -> None:
    """A typing error is an `AttributeError`, as in any module."""
    with pytest.raises(AttributeError):
        import_module(f"belljar.{front}").no_such_name  # noqa: B018
