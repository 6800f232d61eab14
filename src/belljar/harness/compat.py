"""Can a cell stand in for the sandbox that a task names? Pure: a description of that sandbox in, what a cell takes
over from it, or why not, out.

A sandbox that promises something a cell would not keep is refused: an evaluation that runs in another environment than
its author wrote measures something else. What is honoured of a compose file: one service, its `image` (by the name it
has in Belljar's store), `working_dir`, `user`, `environment`; what a cell fulfils anyway (`network_mode: none`,
`init`, a `command` that only waits) is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.units import printable

_FULFILLED: Final = {
    "init",
    "stop_grace_period",
    "x-default",
    "x-local",
    "container_name",
    "hostname",
    "platform",
    "pull_policy",
    "stdin_open",
    "tty",
}
_IDLE_COMMANDS: Final = {"tail -f /dev/null", "sleep infinity", "sleep inf"}
_STAND_INS: Final = {"", "aisiuk/inspect-tool-support"}
"""Images that only mean *some ordinary Linux with the usual tools*: the default image is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Honoured:
    """What a cell takes over: fields for `BelljarConfig`, and notes for the operator."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a cell can't stand in, and what to do."""

    reason: str
    mend: str


Judgement = Honoured | Refused
_MEND_COMPOSE: Final = (
    "put what it needs into an image (`belljar image import`), name that image in a policy, and give it with --policy"
)


def judge(kind: str, *, has_config: bool, compose: Mapping[str, Any] | None, dockerfile: bool) -> Judgement:
    """Decide about a sandbox of type `kind`.

    `compose` is the parsed compose file or `ComposeConfig`, None when there is none; `dockerfile`: the sandbox is
    built from a Dockerfile.
    """
    if kind == "local":
        return Honoured(
            notes=("the task asked for the local sandbox, this host itself: it gets a cell with the default image",)
        )
    if dockerfile:
        return Refused(
            reason="its sandbox is built from a Dockerfile, and a cell does not build images",
            mend="build it elsewhere, `belljar image import docker-daemon:NAME`, name it in a policy, and give it with --policy",
        )
    if compose is not None:
        return judge_compose(compose)
    if kind == "docker" or not has_config:
        return Honoured(
            notes=(f"sandbox {printable(kind)} without a configuration: a cell with the policy's image stands in",)
        )
    return Refused(
        reason=f"its sandbox {printable(kind)} has a configuration that a cell can't honour",
        mend="give a policy with --policy",
    )


def judge_compose(compose: Mapping[str, Any]) -> Judgement:
    """Decide about a compose file."""
    services = compose.get("services") or {}
    extra = sorted(key for key in compose if key not in {"services", "version", "name"} and not key.startswith("x-"))
    if extra:
        return Refused(reason=f"its compose file has {printable(', '.join(extra))}", mend=_MEND_COMPOSE)
    if len(services) != 1:
        return Refused(
            reason=f"its compose file has {len(services)} services; ranges of several cells are not there yet",
            mend="run it with one service",
        )
    return _judge_service(next(iter(services.values())) or {})


def _judge_service(service: Mapping[str, Any]) -> Judgement:
    changes: dict[str, Any] = {}
    refused: list[str] = []
    for key, value in service.items():
        if value is None or key in _FULFILLED or (key.startswith("x-") and key != "x-default"):
            continue
        if not _take(key, value, changes):
            refused.append(key)
    if refused:
        return Refused(
            reason=f"its compose service asks for {printable(', '.join(sorted(refused)))}, which a cell can't honour",
            mend=_MEND_COMPOSE,
        )
    return Honoured(changes=changes)


def _take(key: str, value: Any, changes: dict[str, Any]) -> bool:  # noqa: ANN401 - a YAML value is anything
    """Take one field of a service over; False when a cell can't."""
    if key == "image":
        if str(value).removesuffix(":latest") not in _STAND_INS:
            changes["image"] = str(value)
        return True
    if key == "network_mode":
        return bool(value == "none")
    if key in {"command", "entrypoint"}:
        return (
            " ".join(value if isinstance(value, Sequence) and not isinstance(value, str) else [str(value)])
            in _IDLE_COMMANDS
        )
    if key == "environment":
        return _take_environment(value, changes)
    if key in {"working_dir", "user"}:
        changes["workdir" if key == "working_dir" else "user"] = str(value)
        return True
    return False


def _take_environment(value: Any, changes: dict[str, Any]) -> bool:  # noqa: ANN401 - a YAML value is anything
    pairs = value.items() if isinstance(value, Mapping) else [str(line).partition("=")[::2] for line in value]
    env = tuple((str(name), "" if text is None else str(text)) for name, text in pairs)
    if any("${" in text and "SAMPLE_METADATA_" not in text for _, text in env):
        return False
    changes["env"] = env
    return True
