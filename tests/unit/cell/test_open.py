"""What `open_cell` says and does besides making the VM, which the tests with a VM hold."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.hosts import capable_host, image_with_a_user
from tests.fakes.vm import staged

from belljar.cell import open as opens
from belljar.cell.open import open_cell
from belljar.cell.parts import MachineParts, Parts, describe, start_run
from belljar.cell.range import Opening
from belljar.errors import ContainmentBreach, HostError
from belljar.events import Actor, Kind
from belljar.image.config import ImageConfig
from belljar.ledger.listing import read_events
from belljar.ledger.verification import Status, verify
from belljar.plan.make import make_plan
from belljar.plan.model import MicrovmPlan
from belljar.policy.load import resolve_policy
from belljar.policy.loaded import LoadedPolicy

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


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
            run = cast("Any", SimpleNamespace(run_id="20261123-000000000-abcdef"))
            opening = Opening(loaded, run, tmp_path, Actor.OPERATOR)
            made = opens.ready_cell(opening, loaded, parts_for(loaded), recorder=stage.recorder)
            async with made:
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
    plan = make_plan(loaded.policy, capable_host(), image_with_a_user())
    assert isinstance(plan, MicrovmPlan)
    image: Any = SimpleNamespace(config=ImageConfig(), digest="", names=(), source="")
    kernel: Any = SimpleNamespace(version="", digest="", package="")
    return MachineParts(plan=plan, facts=capable_host(), image=image, kernel=kernel)


def test_another_policy_of_the_same_run_has_names_of_its_own(tmp_path: Path) -> None:
    """Its files are told by the policy's digest; the first policy's stay."""
    first, second = resolve_policy("high"), resolve_policy("critical")
    with start_run("run", "task", [], home=tmp_path) as run:
        for loaded in (first, second, first):
            describe(run, loaded, parts_for(loaded))
    assert len(list(run.path.glob("*-*.*"))) == 3
    assert (run.path / "policy.yaml").read_bytes() == first.text
