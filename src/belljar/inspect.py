"""What a solver of Inspect may ask of its sandbox beyond Inspect's own interface."""

from __future__ import annotations

from inspect_ai.util import sandbox

from belljar.harness.provider import BelljarSandboxEnvironment

__all__ = ["revert"]


async def revert(name: str | None = None, *, verify: bool | None = None) -> None:
    """Put the sample's sandbox back to how the sample began: see `belljar.Cell.revert`.

    The sample's files and set-up are in place again. `name`: as `sandbox(name)` has it.

    Raises `PolicyError` where it can't be: a sandbox on a network, or beside another.
    """
    await sandbox(name).as_type(BelljarSandboxEnvironment).revert(verify=verify)
