"""`env_file` of a service: variables of the task's files, underneath its `environment`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from belljar.compose.dotenv import MAX_VARIABLES, read_dotenv, read_raw
from belljar.compose.service import Converted
from belljar.compose.task_files import TaskFiles, reason
from belljar.compose.words import CannotKeepError, mapping, refusal, switch, text
from belljar.units import printable

MAX_FILES: Final = 16
_KEYS: Final = frozenset({"path", "required", "format"})


def add_env_files(converted: Converted, written: object, files: TaskFiles | None) -> None:
    """Put a service's files of variables under its `environment`. Raises `CannotKeepError`."""
    if not written:
        return
    where = f"service {converted.service}"
    if files is None:
        why = "the compose configuration is not a file, so the task's directory is not known"
        raise refusal(where, "env_file", why)
    found: dict[str, str] = {}
    for path, required, is_raw in _listed(written, where):
        try:
            variables = _read(path, files, found, is_raw=is_raw)
        except FileNotFoundError as error:
            if required:
                hint = "make it; an example is often beside it"
                raise refusal(where, "env_file", f"{path}: it does not exist", hint=hint) from error
            converted.changed("env_file", f"{path} does not exist, and is not required")
            continue
        except (OSError, ValueError) as error:
            why = str(error) if isinstance(error, CannotKeepError) else reason(error)
            raise refusal(where, "env_file", f"{printable(path)}: {printable(why)}") from error
        found |= {name: value for name, value in variables.items() if value is not None}
        if unset := sorted(name for name, value in variables.items() if value is None):
            names = ", ".join(unset)
            converted.changed("env_file", f"{path}: variables without a value are not set ({names})")
    if len(found) > MAX_VARIABLES:
        raise refusal(where, "env_file", f"more than {MAX_VARIABLES:,} variables")
    converted.words["env"] = {**found, **converted.words.get("env", {})}


def _read(path: str, files: TaskFiles, defined: Mapping[str, str], *, is_raw: bool) -> dict[str, str | None]:
    content = files.read_text(files.path(path))
    return read_raw(content) if is_raw else read_dotenv(content, defined)


def _listed(written: Any, where: str) -> Iterator[tuple[str, bool, bool]]:  # noqa: ANN401 - YAML
    """Paths, whether each is required, and whether it is read as it is."""
    items = written if isinstance(written, list) else [written]
    if len(items) > MAX_FILES:
        raise refusal(where, "env_file", f"{len(items)} files; at most {MAX_FILES}")
    for item in items:
        fields = {"path": item} if isinstance(item, str) else mapping(item, "env_file")
        if set(fields) - _KEYS or fields.get("format") not in (None, "raw"):
            raise refusal(where, "env_file", "only `path`, `required` and `format: raw` are read")
        required = switch(fields.get("required", True))
        yield text(fields.get("path") or ""), required, fields.get("format") == "raw"
