"""A solver's requests to its sandbox beyond Inspect's own interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inspect_ai.util import sandbox

from belljar.harness.provider import BelljarSandboxEnvironment

if TYPE_CHECKING:
    from belljar.cell.cell import Snapshot

__all__ = ["revert", "snapshot"]


async def revert(
    name: str | None = None, *, verify: bool | None = None, to: Snapshot | None = None
) -> None:
    """Put the sample's sandbox back to how the sample began: see `belljar.Cell.revert`.

    `name`: as `sandbox(name)` has it. `to`: go back to a snapshot of this sample instead. Raises
    `PolicyError` where it can't be: a sandbox on a network, or beside another.
    """
    await sandbox(name).as_type(BelljarSandboxEnvironment).revert(verify=verify, to=to)


async def snapshot(name: str | None = None) -> Snapshot:
    """Save the sample's sandbox: see `belljar.Cell.snapshot`. Raises `PolicyError` if it can't."""
    return await sandbox(name).as_type(BelljarSandboxEnvironment).snapshot()
