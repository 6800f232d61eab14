"""What the cells of one evaluation share: images, a kill order, model cells, attach sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.cell import FakeCells
from tests.fakes.images import put_image
from tests.unit.harness.runs import close, opened

from belljar.errors import CellError, ContainmentBreach, HostError, PolicyError
from belljar.harness import session as session_module
from belljar.harness.attach import (
    MAX_PAYLOAD_BYTES,
    FrameKind,
    frame,
    frames,
    release_cells,
    remove_dead_sockets,
)
from belljar.harness.model_boundary import LookAtMessages
from belljar.harness.session import ModelCells, Session
from belljar.harness.source import RealCells
from belljar.isolation.hold import give_order, new_order
from belljar.ledger.rundir import RunDirectory
from belljar.model.serve import load_model
from belljar.policy.limits import Tier
from belljar.policy.load import load_policy, policy_of
from belljar.policy.loaded import LoadedPolicy


@pytest.mark.promise("1.8")
def test_an_image_is_the_same_for_all_samples_of_a_run(tmp_path: Path) -> None:
    """A name that is given to another image meanwhile is an error for the samples that follow."""
    home = tmp_path / "home"
    cells = RealCells(home)
    put_image(home, "team/tool", b"one")
    (tmp_path / "p.yaml").write_text("belljar: 1\nrisk: low\nimage: team/tool\n")
    policy = load_policy(tmp_path / "p.yaml")
    cells.check_unchanged(policy)
    cells.check_unchanged(policy)
    put_image(home, "team/tool", b"two")
    with pytest.raises(HostError, match="team/tool"):
        cells.check_unchanged(policy)
    RealCells(home).check_unchanged(policy)


@pytest.mark.promise("6.4", "7.5")
def test_a_killed_run_ends_the_evaluation_once(tmp_path: Path) -> None:
    """The first cell that finds the order ends it."""
    ends: list[str] = []
    with RunDirectory(tmp_path, "run", ["test"]) as run:
        session = Session(run=run, home=tmp_path)
        anyio.run(session.end_if_killed)
        assert session.stopped is None
        give_order(tmp_path, [run.run_id], new_order("run", "an incident"))

        def stop() -> None:
            ends.append("ended")
            session.stop = None  # it has ended: nobody waits for it

        session.stop = stop
        anyio.run(session.end_if_killed)
        anyio.run(session.end_if_killed)
        with pytest.raises(ContainmentBreach, match="an incident"):
            anyio.run(session.check_running)
    assert (ends, len(session.breaches)) == (["ended"], 1)


def running_in(tier: Tier) -> Any:  # noqa: ANN401 - stands for a `ModelCell`
    cell = SimpleNamespace(tier=tier.value)
    return SimpleNamespace(cell=cell, policy=SimpleNamespace(source="model.yaml"))


@pytest.mark.promise("2.8")
def test_a_model_cells_tier_is_never_lower_than_a_samples() -> None:
    """Known before it starts, it is raised; afterwards such a sample is refused."""
    models = ModelCells()
    models.need(Tier.GVISOR)
    models.need(Tier.CONTAINER)
    assert models.tier is Tier.GVISOR
    models.opened["model.yaml"] = running_in(Tier.GVISOR)
    models.need(Tier.GVISOR)
    with pytest.raises(PolicyError, match="less than"):
        models.need(Tier.MICROVM)


@pytest.mark.promise("2.8")
@pytest.mark.anyio
async def test_each_error_of_an_end_is_the_runs(
    session: Session, cells: FakeCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two model cells that leave something, both are named, and both were ended."""
    ended = []

    @asynccontextmanager
    async def opened(policy: LoadedPolicy, **_: object) -> AsyncIterator[Any]:
        yield running_in(Tier.CONTAINER)
        ended.append(policy.source)
        raise CellError(f"{policy.source} left something")

    monkeypatch.setattr(session_module, "open_model", opened)
    for name in ("one", "two"):
        policy = replace(policy_of({"belljar": 1, "risk": "low"}), source=name)
        await session.model_cell(policy)
    at_end: Any = None
    assert LookAtMessages().enabled()
    await LookAtMessages().on_run_end(at_end)
    assert ended == ["two", "one"]
    assert [each.what for each in session.breaches] == [f"{name} left something" for name in ended]
    assert cells.runs[0].closed
    assert not LookAtMessages().enabled()


def test_a_model_without_weights_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """As is a policy that is not a model's."""
    file = tmp_path / "model.yaml"
    file.write_text("belljar: 1\nrisk: low\n")
    with pytest.raises(PolicyError, match="model cell"):
        load_model(file, home=tmp_path)
    digest = "ab" * 32
    file.write_text(f"belljar: 1\nrisk: low\nmodel: {{weights: {{sha256: {digest}}}}}\n")
    with pytest.raises(HostError, match="not in the store"):
        load_model(file, home=tmp_path)


def frames_in(data: bytes, step: int) -> list[tuple[FrameKind, bytes]]:
    """As they are read from chunks of so many bytes."""

    async def read() -> list[tuple[FrameKind, bytes]]:
        sending, receiving = anyio.create_memory_object_stream[bytes](len(data) + 1)
        with sending:
            for start in range(0, len(data), step):
                sending.send_nowait(data[start : start + step])
        return [each async for each in frames(receiving)]

    return anyio.run(read)


@given(st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=300))), st.integers(1, 64))
def test_frames_survive_any_chopping(sent: list[tuple[FrameKind, bytes]], step: int) -> None:
    """What is sent is read, whatever the chunks."""
    assert frames_in(b"".join(frame(kind, payload) for kind, payload in sent), step) == sent


@given(st.binary(max_size=4096))
def test_garbage_is_an_error_or_frames_never_more_memory(garbage: bytes) -> None:
    """A broken peer can't make the reader hold more than a frame."""
    with suppress(ValueError):
        assert all(len(payload) <= MAX_PAYLOAD_BYTES for _, payload in frames_in(garbage, 64))
    with pytest.raises(ValueError, match="a frame of"):
        frames_in(b"D\xff\xff\xff\xff" + garbage, 64)


@pytest.mark.anyio
async def test_a_door_without_an_owner_is_removed(session: Session) -> None:
    """What a crashed owner left is cleaned up by the next who looks; nobody else may open one."""
    environment, other = await opened(), await opened()
    path = environment.attach_socket.path
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.unlink()
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
    await anyio.to_thread.run_sync(remove_dead_sockets, session.home)
    assert (path.exists(), other.attach_socket.path.exists()) == (False, True)
    assert await anyio.to_thread.run_sync(release_cells, environment.cell.id, session.home) == []
    await close(other)
    await close(environment)
