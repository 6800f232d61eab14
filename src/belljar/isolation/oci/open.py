"""Opens a container cell from its plan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from belljar.events import Event, JsonValue, Kind, Recorder
from belljar.image.store import Image
from belljar.isolation.oci.container import Container, ContainerSpec, start_container
from belljar.isolation.oci.trees import ensure_tree
from belljar.isolation.program_root import ensure_runtime_root
from belljar.isolation.renewal import GivenPort, fresh_renewal, renewed_event
from belljar.isolation.sandbox import recorded_lifetime
from belljar.plan.model import OciPlan
from belljar.store.journal import new_cell_id
from belljar.store.locks import claimed


@asynccontextmanager
async def open_container(
    plan: OciPlan,
    image: Image,
    *,
    home: Path,
    recorder: Recorder,
    planned: Mapping[str, Any],
    cell_id: str | None = None,
    port: GivenPort | None = None,
    part_of: str = "",
    weights: Path | None = None,
) -> AsyncIterator[Container]:
    """A container of the plan, ready; destroyed when the block is left.

    No task group or cancel scope is open across the yield.

    Args:
        planned: recorded as `cell.planned` before anything is made.
        port: attached before anything of the runtime's runs. None: no network at all.
        part_of: as in `JournalEntry`.
        weights: of a model, whose `data` it sees read-only; kept in the store meanwhile.

    Raises:
        HostError: this host can't.
        CellError: it could not be made, with the runtime's status; nothing is left of it.
    """
    cell_id = cell_id or new_cell_id()

    async def make(owner: AsyncExitStack, held: ExitStack) -> Container:
        tree = await ensure_tree(image, home=home, held=held)
        if weights is not None:
            held.enter_context(claimed(weights))
        runtime = plan.oci.runtime
        root = ensure_runtime_root(home, runtime)
        starting: dict[str, JsonValue] = {"runtime": f"{runtime.name} {root.version}"}
        starting["tree"] = image.digest
        recorder.record(Event(kind=Kind.CELL_STARTING, cell_id=cell_id, data=starting))
        renewal = fresh_renewal()
        spec = ContainerSpec(
            cell_id=cell_id,
            kind="cell",
            shape=plan.oci,
            limits=plan.jail,
            controllers=plan.jail_controllers,
            memory_by_rlimit=plan.memory_by_rlimit,
            root=root,
            tree=tree,
            hostname=renewal.hostname,
            directory=home / "cells" / cell_id,
            port=port,
            part_of=part_of,
            weights=None if weights is None else weights / "data",
            is_traced=bool(plan.policy.decoys) and runtime.kind == "runsc",
        )
        container, renewed = await start_container(
            spec, renewal, home=home, owner=owner, recorder=recorder
        )
        recorder.record(renewed_event(cell_id, renewed, renewal))
        data: dict[str, JsonValue] = {"duration_ms": round(container.timings_ms["total"], 1)}
        recorder.record(Event(kind=Kind.CELL_STARTED, cell_id=cell_id, data=data))
        return container

    async with recorded_lifetime(recorder, cell_id, planned, make) as container:
        yield container
