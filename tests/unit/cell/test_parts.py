"""What a cell is made from: found in the store, planned for this host, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.hosts import some_image

from belljar.cell.parts import gather_parts
from belljar.errors import HostError
from belljar.image.store import Store
from belljar.policy.load import parse_policy, resolve_policy


def test_all_images_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    """Those of a range's target cells too, each with the command that gets it."""
    network = (
        "network: {stand_ins: {db: {kind: cell, names: [db.example], ports: [1], image:"
        " 'postgres:16'}}}"
    )
    policy = parse_policy(
        f"belljar: 1\nrisk: high\nimage: team/tool\n{network}\n".encode(), source="x", base=None
    )
    with pytest.raises(HostError) as caught:
        gather_parts(policy, tmp_path)
    for command in (
        "belljar image import docker://team/tool",
        "belljar image import docker://postgres:16",
    ):
        assert command in str(caught.value)


def test_a_store_without_a_kernel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image alone is not enough, and the error says what to run."""
    monkeypatch.setattr(Store, "find", lambda _store, _ref: some_image())
    with pytest.raises(HostError, match="kernel") as caught:
        gather_parts(resolve_policy("high"), tmp_path)
    assert "belljar setup" in caught.value.hint
