"""An image's configuration. Sources: moby, image specification v1.2; OCI image-spec."""

from __future__ import annotations

import platform
import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

from belljar.dataclass import dataclass, field
from belljar.errors import HostError
from belljar.image.layers import LayerError, check_components
from belljar.policy.reference import is_idle
from belljar.units import printable

# More than any image states: what Linux takes as one argument, and a thousand of them.
_MAX_WORDS: Final = 1000
_MAX_WORD_CHARS: Final = 128 << 10
# Each becomes a directory of the packed tree.
_MAX_VOLUMES: Final = 100
# Times are Go's `time.Duration`.
_MAX_NS: Final = (1 << 63) - 1
# Fields of `HealthCheck`, and Docker's names.
HEALTH_NUMBERS: Final = {
    "interval_ns": "Interval",
    "timeout_ns": "Timeout",
    "start_period_ns": "StartPeriod",
    "start_interval_ns": "StartInterval",
    "retries": "Retries",
}
# What no argument, variable or path of a process can hold.
_UNSPEAKABLE: Final = "[\0\ud800-\udfff]"
# What Docker runs where an image names no SHELL.
_SHELL: Final = ("/bin/sh", "-c")
_DEBIAN_ARCH: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def debian_arch() -> str:
    """Raise `HostError` for an unsupported architecture."""
    machine = platform.machine()
    if machine not in _DEBIAN_ARCH:
        hint = f"use a machine with {' or '.join(_DEBIAN_ARCH)}"
        raise HostError(f"there is no guest kernel for {machine}", hint=hint)
    return _DEBIAN_ARCH[machine]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """0 is Docker's default."""

    test: tuple[str, ...]
    interval_ns: int = 0
    timeout_ns: int = 0
    start_period_ns: int = 0
    start_interval_ns: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """Without `shell` and `stop_signal`, Docker's defaults hold."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    healthcheck: HealthCheck | None = None
    shell: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""
    on_build: tuple[str, ...] = ()

    @property
    def program(self) -> tuple[str, ...]:
        whole = (*self.entrypoint, *self.cmd)
        return () if is_idle(whole) else whole


# Those that older images lack: an image without them has the digest that it always had.
LATER: Final = ("healthcheck", "shell", "volumes", "stop_signal", "on_build")


def config_of(document: Mapping[str, Any]) -> ImageConfig:
    """Raise `LayerError` for a broken configuration."""
    config = document.get("config") or {}
    if not isinstance(config, dict):
        raise _broken("config")
    volumes = config.get("Volumes") or {}
    if not isinstance(volumes, dict) or len(volumes) > _MAX_VOLUMES:
        raise _broken("Volumes")
    env = {key: text for key, _, text in (word.partition("=") for word in _words(config, "Env"))}
    entrypoint = tuple(_words(config, "Entrypoint"))
    if "" in env:
        raise _broken("a variable without a name in Env")
    return ImageConfig(
        env=env,
        user=_word(config.get("User") or "root", "User"),
        workdir=_directory(config.get("WorkingDir") or "/", "WorkingDir"),
        entrypoint=() if entrypoint == ("",) else entrypoint,  # Docker clears it so
        cmd=tuple(_words(config, "Cmd")),
        healthcheck=_health_check(config.get("Healthcheck")),
        shell=tuple(_words(config, "Shell")),
        volumes=tuple(sorted(_directory(path, "Volumes") for path in volumes)),
        stop_signal=_word(config.get("StopSignal") or "", "StopSignal"),
        on_build=tuple(_words(config, "OnBuild")),
    )


def _health_check(value: object) -> HealthCheck | None:
    if not value:
        return None
    if not isinstance(value, dict):
        raise _broken("Healthcheck")
    test = tuple(_words(value, "Test"))
    if not test or test[0] == "NONE":
        return None
    is_shells = test[0] == "CMD-SHELL" and len(test) == 2
    if not is_shells and (test[0] != "CMD" or len(test) < 2):
        raise _broken("Healthcheck")
    numbers = {field: value.get(name) or 0 for field, name in HEALTH_NUMBERS.items()}
    if not all(type(number) is int and 0 <= number <= _MAX_NS for number in numbers.values()):
        raise _broken("Healthcheck")
    return HealthCheck(test=test, **numbers)


def image_health(
    config: ImageConfig, times: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """Let Compose's `times` win."""
    check = config.healthcheck
    if check is None:
        return None
    from belljar.compose.translate import read_health

    names = ("interval", "timeout", "start_period")
    written = {name: f"{getattr(check, f'{name}_ns') / 1e9:.6f}s" for name in names}
    found = read_health({"test": check.test, "retries": check.retries, **written, **(times or {})})
    if check.test[0] == "CMD-SHELL":
        found["command"] = [*(config.shell or _SHELL), check.test[1]]
    return found | {
        name: float(found[name].removesuffix("s")) for name in ("interval", "timeout", "within")
    }


def _words(config: Mapping[str, Any], name: str) -> list[str]:
    words = config.get(name) or []
    if not isinstance(words, list) or len(words) > _MAX_WORDS:
        raise _broken(name)
    return [_word(word, name) for word in words]


def _word(value: object, name: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_WORD_CHARS or re.search(_UNSPEAKABLE, value):
        raise _broken(name)
    return value


def _directory(value: object, name: str) -> str:
    path = _word(value, name)
    if not path.startswith("/"):
        raise _broken(f"{name} names {printable(path)!r}, which is not absolute")
    path = "/" + posixpath.normpath(path).strip("/")
    check_components(tuple(path.encode().split(b"/")), path.encode())
    return path


def _broken(what: str) -> LayerError:
    return LayerError(f"its configuration is broken: {what}")
