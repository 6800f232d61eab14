"""What `open_cell` says and does besides making the VM, which the tests with a VM hold."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.hosts import capable_host, image_with_a_user, some_image, some_kernel
from tests.fakes.vm import staged

from belljar.cell.open import copy_in, open_cell, planned
from belljar.cell.parts import MachineParts, prepare, refused
from belljar.channel.frames import OpKind
from belljar.errors import CellError, HostError, PolicyError
from belljar.events import Kind, MemoryRecorder
from belljar.ledger.schema import check_data
from belljar.ledger.verification import Status, verify
from belljar.plan.make import make_plan
from belljar.plan.model import MicrovmPlan
from belljar.policy.load import load_policy, resolve_policy

pytestmark = pytest.mark.anyio


def only_run(home: Path) -> Path:
    """The one run directory of a store."""
    (run,) = (home / "runs").iterdir()
    return run


def test_a_refusal_says_why_where_and_what_to_do() -> None:
    """Fail closed includes the record: reason, place and hint, and the policy's digest."""
    loaded = resolve_policy("high")
    event = refused(loaded, PolicyError("can't be meant", where="policy.yaml:3", hint="say less"))
    check_data(event.kind, dict(event.data))
    assert event.kind is Kind.POLICY_REFUSED
    assert (event.data["reason"], event.data["where"], event.data["hint"]) == (
        "can't be meant",
        "policy.yaml:3",
        "say less",
    )
    assert event.data["policy_sha256"] == hashlib.sha256(loaded.text).hexdigest()


def test_what_is_planned_is_on_record_before_it_is_made() -> None:
    """Tier, emulation, every wall, risk and image; in a form the ledger takes."""
    loaded = resolve_policy("critical")
    plan = make_plan(loaded.policy, capable_host(), image_with_a_user())
    assert isinstance(plan, MicrovmPlan)
    image = some_image()
    data: dict[str, Any] = planned(
        loaded, MachineParts(plan=plan, facts=capable_host(), image=image, kernel=some_kernel())
    )
    check_data(Kind.CELL_PLANNED, data)
    assert (data["tier"], data["emulated"], data["risk"], data["image"]) == (
        "microvm",
        False,
        "critical",
        image.digest,
    )
    assert data["layers"] == [layer.name for layer in plan.layers]


@pytest.mark.parametrize("fields", ["workdir: /etc/hosts/d", "files: [{source: n, target: /n/n}]"])
async def test_what_a_cell_cannot_take_is_its_error(tmp_path: Path, fields: str) -> None:
    """A work directory or a file that can't be made is a `CellError`, which names it."""
    (tmp_path / "n").write_bytes(b"")
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"belljar: 1\nrisk: high\n{fields}\n")
    async with staged() as stage:
        stage.guest.errors[OpKind.WRITE] = errno.ENOTDIR
        with pytest.raises(CellError, match=r"/etc/hosts/d|/n/n"):
            await copy_in(stage.cell, load_policy(policy))


async def test_an_unprepared_host_is_refused_on_record(tmp_path: Path) -> None:
    """Without image and kernel nothing is made: a `HostError`, and `policy.refused` in the
    record."""
    recorder = MemoryRecorder()
    with pytest.raises(HostError):
        await prepare(resolve_policy("high"), recorder=recorder, home=tmp_path)
    assert recorder.kinds() == [Kind.POLICY_REFUSED]


async def test_a_refused_cell_leaves_a_sealed_run(tmp_path: Path) -> None:
    """`open_cell` without a run makes one of its own; a refusal is in it, sealed and verifiable."""
    with pytest.raises(HostError):
        async with open_cell("high", home=tmp_path):
            pytest.fail("it was opened")
    assert verify(only_run(tmp_path)).status is Status.VERIFIED
