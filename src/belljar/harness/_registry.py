"""Inspect's entry point; imports the providers late."""

from __future__ import annotations

from inspect_ai.model import ModelAPI, modelapi
from inspect_ai.util import SandboxEnvironment, sandboxenv


@sandboxenv(name="belljar")
def belljar() -> type[SandboxEnvironment]:
    from belljar.harness.provider import BelljarSandboxEnvironment

    return BelljarSandboxEnvironment


@modelapi(name="belljar")
def belljar_model() -> type[ModelAPI]:
    from belljar.harness.model_api import BelljarModelAPI

    return BelljarModelAPI
