"""The parts of Harbor 0.25 that an environment stands on, with the signatures of its wheel."""

# ruff: noqa: ANN401 - Harbor's interface
from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass
class ExecResult:
    """A command's result."""

    stdout: str | None = None
    stderr: str | None = None
    return_code: int = 0


class Capabilities:
    """Flags, False unless given."""

    def __init__(self, **flags: bool) -> None:
        self.flags = flags

    def __getattr__(self, name: str) -> bool:
        return self.flags.get(name, False)


class NetworkMode(str, Enum):  # noqa: UP042 - as Harbor's is
    """What a phase may reach."""

    NO_NETWORK = "no-network"
    PUBLIC = "public"
    ALLOWLIST = "allowlist"


@dataclass
class NetworkPolicy:
    """A phase's network."""

    network_mode: str = "public"
    allowed_hosts: list[str] = field(default_factory=list)


class BaseEnvironment:
    """The base class: constructor, helpers, and what is abstract there."""

    def __init__(
        self,
        environment_dir: Path,
        environment_name: str,
        session_id: str,
        trial_paths: Any,
        task_env_config: Any,
        logger: logging.Logger | None = None,
        persistent_env: dict[str, str] | None = None,
        network_policy: NetworkPolicy | None = None,
        *args: Any,
        **options: Any,
    ) -> None:
        self.environment_dir, self.environment_name = environment_dir, environment_name
        self.session_id, self.task_env_config = session_id, task_env_config
        self.trial_paths = trial_paths
        self.environment_id = "0" * 32
        self.logger = logger or logging.getLogger("harbor")
        self.default_user: str | int | None = None
        self._persistent_env = persistent_env or {}
        self._mounts: list[Any] = []
        self._host_mounts: list[Any] = []
        self._network_policy = network_policy or NetworkPolicy()
        self._validate_definition()
        with suppress(ValueError):  # a test asks by itself
            self.validate_network_policy_support()

    def _validate_definition(self) -> None:
        raise NotImplementedError

    @property
    def capabilities(self) -> Capabilities:
        """Nothing, unless overridden."""
        return Capabilities()

    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        """Refuse an allowlist that an environment can't enforce."""
        policy = network_policy or self._network_policy
        if policy.network_mode == "allowlist" and not self.capabilities.network_allowlist:
            raise ValueError(f"no allowlist for {policy.allowed_hosts}")

    def _resource_value(self, resource: str) -> int | None:
        config = self.task_env_config
        value: int | None = config.cpus if resource == "cpu" else config.memory_mb
        return value

    def _resolve_user(self, user: str | int | None) -> str | int | None:
        return user if user is not None else self.default_user

    def _merge_env(self, env: dict[str, str] | None) -> dict[str, str] | None:
        return {**self._persistent_env, **(env or {})} or None

    def _mount_targets(self, *, writable_only: bool = False) -> list[str]:
        return []

    async def ensure_dirs(self, dirs: list[str], *, chmod: bool = True) -> None:
        """Nothing without mounts."""

    async def _upload_environment_dir_after_start(self) -> None:
        """Nothing with a Dockerfile."""


def harbor_modules() -> dict[str, ModuleType]:
    """The modules, by name."""
    parts: dict[str, dict[str, object]] = {
        "harbor": {},
        "harbor.environments": {},
        "harbor.environments.base": {"BaseEnvironment": BaseEnvironment, "ExecResult": ExecResult},
        "harbor.environments.capabilities": {
            "EnvironmentCapabilities": Capabilities,
            "EnvironmentResourceCapabilities": Capabilities,
        },
        "harbor.models": {},
        "harbor.models.task": {},
        "harbor.models.task.config": {
            "NetworkMode": NetworkMode,
            "NetworkPolicy": NetworkPolicy,
        },
    }
    found: dict[str, ModuleType] = {}
    for name, content in parts.items():
        found[name] = ModuleType(name)
        vars(found[name]).update(content)
    return found
