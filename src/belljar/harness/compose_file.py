"""Which configurations of a sandbox are compose files, and reading them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from belljar.errors import PolicyError
from belljar.units import printable

COMPOSE_NAMES: Final = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_LIKE_COMPOSE: Final = re.compile(r"[-.]compose\.ya?ml$")
_MAX_BYTES: Final = 1 << 20


def is_compose_name(config: str) -> bool:
    """Whether a file of this name is a compose file, as Inspect sees it."""
    name = Path(config).name
    return name in COMPOSE_NAMES or _LIKE_COMPOSE.search(name) is not None


def is_dockerfile_name(config: str) -> bool:
    """Likewise a Dockerfile."""
    path = Path(config)
    return "Dockerfile" in {path.stem, path.suffix.removeprefix(".")}


def beside(directory: Path) -> Path | None:
    """The compose file of a directory, if it has one."""
    return next((directory / name for name in COMPOSE_NAMES if (directory / name).is_file()), None)


def as_document(config: BaseModel) -> dict[str, Any]:
    """Inspect's `ComposeConfig` as the file it stands for."""
    return config.model_dump(by_alias=True, exclude_none=True)


def read_document(path: Path) -> dict[str, Any]:
    """A compose file, parsed. Raises `PolicyError` for one that is none, and for more than 1 MiB."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        parsed = YAML(typ="safe", pure=True).load(content) if len(content) <= _MAX_BYTES else None
    except (OSError, YAMLError, ValueError, RecursionError) as error:
        raise PolicyError(
            f"can't be read: {printable(str(error), max_chars=300)}", where=str(path), mend="mend the compose file"
        ) from error
    if not isinstance(parsed, dict):
        what = "is too large for" if len(content) > _MAX_BYTES else "is not"
        raise PolicyError(f"{what} a compose file", where=str(path), mend="mend the compose file")
    return parsed
