"""A template that didn't restore is forgotten, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from belljar.isolation.microvm.template import Template, forget, lock_name
from belljar.store.locks import locked


@pytest.fixture
def template(tmp_path: Path) -> Template:
    """One that is in the store."""
    directory = tmp_path / "templates" / ("a" * 64)
    directory.mkdir(parents=True)
    for name in ("template.json", "state", "memory"):
        (directory / name).write_bytes(name.encode())
    return Template(
        key=directory.name,
        memory=directory / "memory",
        state=b"state",
        root=cast("Any", None),
    )


def test_one_that_did_not_restore_is_made_anew(template: Template, tmp_path: Path) -> None:
    """Its description goes, its files stay for who has them."""
    assert forget(tmp_path, template)
    assert sorted(path.name for path in template.memory.parent.iterdir()) == ["memory", "state"]
    assert not forget(tmp_path, template)


def test_one_that_was_made_anew_meanwhile_stays(template: Template, tmp_path: Path) -> None:
    """Another cell noticed it first."""
    (template.memory.parent / "state").write_bytes(b"a new one")
    assert not forget(tmp_path, template)
    assert (template.memory.parent / "template.json").exists()


def test_one_that_is_being_made_is_not_waited_for(template: Template, tmp_path: Path) -> None:
    """Many cells that fail at once take no threads from who makes it."""
    with locked(tmp_path, lock_name(template.key)):
        assert not forget(tmp_path, template)
    assert (template.memory.parent / "template.json").exists()
