"""What a cell is made from: found in the store, planned for this host, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fakes.hosts import capable_host, some_image, some_kernel

from belljar.cell.parts import MachineParts, gather_parts
from belljar.errors import HostError
from belljar.host.model import HostFacts
from belljar.image.store import Image, Store
from belljar.policy.load import parse_policy, resolve_policy


def test_an_empty_store_is_refused(tmp_path: Path) -> None:
    """No image: the error says how to get one, and nothing is written."""
    with pytest.raises(HostError) as caught:
        gather_parts(resolve_policy("high"), tmp_path)
    assert "belljar" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


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


def test_the_plan_is_made_of_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's user, directory and environment, and this host's facts, with KVM proven by the
    kernel that will boot; no runtime is tried that no plan needs."""
    asked: list[Any] = []

    def find(_store: Store, ref: str) -> Image:
        asked.append(ref)
        return some_image()

    def facts(home: Path, *, kernel: object, runtimes: bool) -> HostFacts:
        asked.append((home, callable(kernel), runtimes))
        return capable_host()

    monkeypatch.setattr(Store, "find", find)
    monkeypatch.setattr("belljar.cell.parts.current_kernel", lambda _home: some_kernel())
    monkeypatch.setattr("belljar.cell.parts.find_facts", facts)
    parts = gather_parts(resolve_policy("high"), tmp_path)
    assert list(dict.fromkeys(asked)) == ["default", (tmp_path, True, False)]
    assert isinstance(parts, MachineParts)
    assert (parts.image, parts.kernel, parts.facts) == (some_image(), some_kernel(), capable_host())
    assert parts.plan.image is not None
    assert (parts.plan.image.digest, parts.plan.user, parts.plan.workdir) == (
        parts.image.digest,
        "user",
        "/home/user",
    )
    assert parts.plan.env["LANG"] == "C.UTF-8"
