"""Inspect's entry point; imports the provider late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inspect_ai.util import sandboxenv

if TYPE_CHECKING:
    from belljar.harness.provider import BelljarSandboxEnvironment


@sandboxenv(name="belljar")
def belljar() -> type[BelljarSandboxEnvironment]:
    """The sandbox named `belljar`."""
    from belljar.harness.provider import BelljarSandboxEnvironment

    return BelljarSandboxEnvironment
