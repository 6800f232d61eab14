"""What `open_cell` says and does besides making the VM, which the tests with a VM hold."""

from __future__ import annotations

import errno
import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.hosts import capable_host, image_with_a_user, some_image, some_kernel
from tests.fakes.vm import staged

from belljar.cell import open as opens
from belljar.cell.open import copy_in, open_cell
from belljar.cell.parts import MachineParts, Parts, describe, gather_parts, start_run
from belljar.channel.frames import OpKind
from belljar.errors import CellError, ContainmentBreach, HostError
from belljar.events import Actor, Kind
from belljar.ledger.listing import read_events
from belljar.ledger.verification import Status, verify
from belljar.plan.make import make_plan
from belljar.plan.model import MicrovmPlan
from belljar.policy.load import load_policy, parse_policy, resolve_policy
from belljar.policy.loaded import LoadedPolicy

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


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


@pytest.mark.promise("6.1")
@pytest.mark.parametrize("raised", [None, ValueError("the caller's own"), KeyboardInterrupt()])
async def test_what_a_cells_end_left_is_raised_whatever_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException | None
) -> None:
    """A breach is heard beside an error or an interrupt of the block."""
    async with staged() as stage:
        stage.vm.survivors = ("process 7",)
        monkeypatch.setattr(opens, "_sandbox", lambda *_args, **_options: nullcontext(stage.vm))

        async def use() -> None:
            loaded = resolve_policy("high")
            words: dict[str, Any] = {"run_id": "20261123-000000000-abcdef", "home": tmp_path}
            async with opens.ready_cell(
                loaded, parts_for(loaded), recorder=stage.recorder, actor=Actor.OPERATOR, **words
            ):
                if raised is not None:
                    raise raised

        with pytest.raises(ContainmentBreach, match="process 7"):
            await use()


async def test_a_refused_cell_leaves_a_sealed_run(tmp_path: Path) -> None:
    """`open_cell` without a run makes one of its own; a refusal is in it, sealed and verifiable."""
    with pytest.raises(HostError):
        async with open_cell("high", home=tmp_path):
            pytest.fail("it was opened")
    (path,) = (tmp_path / "runs").iterdir()
    assert verify(path).status is Status.VERIFIED
    assert Kind.POLICY_REFUSED in [line.kind for line in read_events(path)]


def parts_for(loaded: LoadedPolicy) -> Parts:
    """A policy planned for a capable host."""
    plan = make_plan(loaded.policy, capable_host(), image_with_a_user())
    assert isinstance(plan, MicrovmPlan)
    return MachineParts(plan=plan, facts=capable_host(), image=some_image(), kernel=some_kernel())


def test_another_policy_of_the_same_run_has_names_of_its_own(tmp_path: Path) -> None:
    """Its files are told by the policy's digest; the first policy's stay."""
    first, second = resolve_policy("high"), resolve_policy("critical")
    with start_run("run", "task", [], home=tmp_path) as run:
        for loaded in (first, second, first, second):
            describe(run, loaded, parts_for(loaded))
    tag = hashlib.sha256(second.text).hexdigest()[:12]
    assert {path.name for path in run.path.glob("p*.*")} >= {"policy.yaml", "plan.json"}
    assert {path.name for path in run.path.glob("*-*.*")} == {
        f"policy-{tag}.yaml",
        f"plan-{tag}.json",
        f"parts-{tag}.json",
    }
    assert (run.path / "policy.yaml").read_bytes() == first.text
    assert verify(run.path).status is Status.VERIFIED


def test_all_images_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    """Those of a range's target cells too, each with the command that gets it."""
    network = (
        "network: {stand_ins: {db: {kind: cell, names: [db.example], ports: [1], image:"
        " 'postgres:16'}}}"
    )
    text = f"belljar: 1\nrisk: high\nimage: team/tool\n{network}\n"
    with pytest.raises(HostError) as caught:
        gather_parts(parse_policy(text.encode(), source="x", base=None), tmp_path)
    for image in ("team/tool", "postgres:16"):
        assert f"belljar image import docker://{image}" in str(caught.value)
