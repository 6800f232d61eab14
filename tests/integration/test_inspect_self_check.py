"""Inspect's own conformance checks for sandbox providers, on real cells of every tier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - that is how Inspect hands them out

from belljar.harness.provider import BelljarSandboxEnvironment
from belljar.harness.session import Session, session_scope

pytestmark = [pytest.mark.anyio, pytest.mark.vm]

# Root reads and writes a file whose mode forbids it (CAP_DAC_OVERRIDE): that is Linux.
ROOT_CANNOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}

# Each waits for seconds; the contract's tests show the same in every tier.
for _slow in ("", "_kills_process", "_kills_child_processes"):
    pytest.mark.thorough_in("gvisor", "microvm")(globals()[f"test_exec_timeout{_slow}"])
# That of the children kills a parent, too.
pytest.mark.thorough(globals()["test_exec_timeout_kills_process"])

CELLS = (
    "microvm-user-asyncio",
    pytest.param("microvm-root-trio", marks=pytest.mark.thorough),
    "container-user-trio",
    "gvisor-user-asyncio",
)


@pytest.fixture(scope="module", params=CELLS)
def setting(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def anyio_backend(setting: str) -> str:
    return setting.split("-")[2]


@pytest.fixture(scope="module")
async def shared_env(
    setting: str, anyio_backend: str, vm_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SandboxEnvironment]:
    tier, user, _ = setting.split("-")
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    account = "user: root\n" if user == "root" else ""
    policy.write_text(
        f"belljar: 1\nrisk: low\ntier: {tier}\nresources:\n  memory: 512MiB\n  output:"
        f" 64MiB\n{account}"
    )
    with session_scope(Session(home=vm_home)):
        await BelljarSandboxEnvironment.task_init("startup", str(policy))
        environments = await BelljarSandboxEnvironment.sample_init("self_check", str(policy), {})
        yield environments["default"]
        await BelljarSandboxEnvironment.sample_cleanup(
            "self_check", str(policy), environments, interrupted=False
        )
        await BelljarSandboxEnvironment.task_cleanup("shutdown", str(policy), cleanup=True)


@pytest.fixture
def sandbox_env(
    shared_env: SandboxEnvironment, setting: str, request: pytest.FixtureRequest
) -> SandboxEnvironment:
    """The checks' own; root has known failures, those that Linux makes impossible."""
    if "-root-" in setting and request.node.originalname in ROOT_CANNOT:
        request.applymarker(pytest.mark.xfail(strict=True))
    return shared_env


@pytest.mark.promise("1.6")
def test_all_checks_are_here() -> None:
    """A newer Inspect brings more: they are collected by themselves."""
    assert len(self_check.__all__) >= 44
    assert set(self_check.__all__) >= ROOT_CANNOT
