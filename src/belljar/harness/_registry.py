"""Inspect's entry point; imports the providers late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inspect_ai.model import modelapi
from inspect_ai.util import sandboxenv

if TYPE_CHECKING:
    from belljar.harness.model_api import BelljarModelAPI
    from belljar.harness.provider import BelljarSandboxEnvironment


@sandboxenv(name="belljar")
def belljar() -> type[BelljarSandboxEnvironment]:
    from belljar.harness.provider import BelljarSandboxEnvironment

    return BelljarSandboxEnvironment


@modelapi(name="belljar")
def belljar_model() -> type[BelljarModelAPI]:
    from belljar.harness.model_api import BelljarModelAPI

    return BelljarModelAPI
