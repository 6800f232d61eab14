"""Reads a policy file, or Python's values, into a `Policy`.

All fields that are wrong are reported at once, with file, line and column. Of the host only the
files that the policy names are looked at.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError

from belljar.errors import PolicyError
from belljar.policy import fields as kinds
from belljar.policy import yaml_tree
from belljar.policy.fields import AtError
from belljar.policy.files import OutsideError, open_beneath, open_regular, read_regular, reason
from belljar.policy.loaded import (
    DEFAULT_PRESET,
    FILE_RULE,
    MAX_FILE_BYTES,
    PRESETS,
    LoadedPolicy,
    own_directory,
    preset_text,
)
from belljar.policy.model import Policy
from belljar.policy.network import Network, OwnCell, Record, Upstream
from belljar.policy.sections import FileCopy, HostRules, HostToolsText, ResourcesText, Rights
from belljar.policy.serving import Gpu, ModelBlock, Weights
from belljar.policy.signals import DecoyText, GuardText, ProtectedText
from belljar.policy.stand_ins import MODELS, CellStandIn, Health
from belljar.policy.yaml_tree import Problem, YamlTree
from belljar.units import did_you_mean, format_size, kind_of, listed, printable, quoted

# They are copied into each cell at its start.
MAX_FILES_BYTES: Final = 500 << 20
HINT_EXAMPLE: Final = "correct the policy; `belljar policy show high` prints a valid one"
_OWN_RULE: Final = (
    "the stand-in sees the whole directory: use one below the policy's directory, with only what "
    "the model may see"
)
# The model of each mapping, by the names that lead to it.
_MODELS: Final[Mapping[tuple[str, ...], type[BaseModel]]] = {
    (): Policy,
    ("resources",): ResourcesText,
    ("files",): FileCopy,
    ("host",): HostRules,
    ("host_tools",): HostToolsText,
    ("rights",): Rights,
    ("decoys",): DecoyText,
    ("guard",): GuardText,
    ("guard", "protect"): ProtectedText,
    ("model",): ModelBlock,
    ("model", "weights"): Weights,
    ("model", "gpu"): Gpu,
    ("network",): Network,
    ("network", "record"): Record,
    ("network", "own_cell"): OwnCell,
    ("network", "upstreams"): Upstream,
}
# Places whose names are chosen by the author: below them the kind says which fields there are.
_STAND_IN_MODELS: Final[Mapping[tuple[str, ...], type[BaseModel]]] = {
    ("health",): Health,
    ("resources",): ResourcesText,
    ("files",): FileCopy,
    ("rights",): Rights,
}


# ---- where a policy comes from


def load_policy(path: str | os.PathLike[str]) -> LoadedPolicy:
    """The policy in a file of at most 64 KiB, which is no link out of its directory.

    Raises `PolicyError`: it can't be read, or everything that is wrong, with line and column.
    """
    file = Path(path)
    return parse_policy(
        read_policy_file(file),
        source=str(path),
        base=file.parent.absolute(),
        default_name=file.stem,
    )


def read_policy_file(file: Path) -> bytes:
    """A policy file's bytes, at most one too many. Raises `PolicyError`."""
    try:
        return read_regular(file.parent, file.name or ".", yaml_tree.MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        hint = f"give a policy file, or a preset: {', '.join(PRESETS)}"
        if isinstance(exc, OutsideError):
            hint = "put the file itself there, or name it where it is"
        what = f"the policy can't be read: {reason(exc)}"
        raise PolicyError(what, where=printable(str(file)), hint=hint) from exc


def load_preset(name: str) -> LoadedPolicy:
    """One of Belljar's own policies: low, medium, high or critical.

    Raises `PolicyError` for another name.
    """
    if name not in PRESETS:
        near = did_you_mean(name, PRESETS)
        raise PolicyError(
            f"there is no preset {quoted(name)}{near}",
            hint=f"use one of {', '.join(PRESETS)}, or a policy file",
        )
    return parse_policy(preset_text(name), source=f"preset:{name}", base=None, default_name=name)


def resolve_policy(ref: str | os.PathLike[str] | None) -> LoadedPolicy:
    """A preset's name or a file's path; None is the preset `high`.

    Of a string a preset's name wins: `./high` is a file. Raises `PolicyError`.
    """
    if ref is None:
        return load_preset(DEFAULT_PRESET)
    if isinstance(ref, os.PathLike):
        return load_policy(ref)
    looks_like_path = "\0" not in ref and ("/" in ref or "." in ref or os.path.lexists(ref))
    return load_policy(ref) if ref not in PRESETS and looks_like_path else load_preset(ref)


def policy_of(policy: Policy | Mapping[str, Any]) -> LoadedPolicy:
    """A policy from a dict with a file's fields, or from a `Policy`; it can't copy `files` in.

    Raises `PolicyError` with each field's name and no line.
    """
    if isinstance(policy, Policy):
        if policy.files:
            raise PolicyError(
                "files: a Policy has no directory that they could be copied from",
                where="a Policy",
                hint="write the policy as a file, or use `Cell.write_file`",
            )
        # Checked again: `model_copy` and `model_construct` check nothing
        checked = with_changes(LoadedPolicy(policy=policy, text=b"", source="a Policy"), {})
        return replace(checked, text=json.dumps(checked.policy.to_json(), indent=2).encode())
    try:
        text = json.dumps(_plain(policy), indent=2, ensure_ascii=False, allow_nan=False).encode()
    # A dict of Python's may contain itself.
    except (ValueError, RecursionError) as error:  # a lone surrogate is a ValueError, too
        raise PolicyError(printable(str(error)), where="a dict", hint=HINT_EXAMPLE) from error
    examined = examine(text, base=None)
    if examined.policy is None or examined.problems:
        found = [f"{each.field}: {each.message}".removeprefix(": ") for each in examined.problems]
        what = found[0] if len(found) == 1 else "\n  ".join((f"{len(found)} problems", *found))
        raise PolicyError(what, where="a dict", hint=HINT_EXAMPLE)
    return LoadedPolicy(policy=examined.policy, text=text, source="a dict")


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON values
    """As lists and dicts. Raises `ValueError` for what YAML can't hold."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"a field's name is text, but {key!r} is {type(key).__name__}")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(
        f"a policy holds text, numbers, lists and dicts, but this is {type(value).__name__}"
    )


def with_changes(loaded: LoadedPolicy, changes: Mapping[str, Any]) -> LoadedPolicy:
    """The same policy with some fields replaced, checked as if it had been written so.

    Raises `PolicyError`.
    """
    model = type(loaded.policy)
    fields = {name: getattr(loaded.policy, name) for name in model.model_fields}
    try:
        changed = model.model_validate({**fields, **changes}, strict=False)
    except ValidationError as error:
        wrong = printable(wrong_fields(error), max_chars=600)
        raise PolicyError(
            f"the policy can't be changed as asked: {wrong}",
            where=printable(loaded.source),
            hint="change the task's sandbox, or use your own policy:"
            " `belljar run --policy FILE` or `inspect eval --sandbox belljar:FILE`",
        ) from error
    return replace(loaded, policy=changed)


def wrong_fields(error: ValidationError) -> str:
    """The fields that a model refused, each with the reason."""
    found = ((_located(each)[0], each) for each in error.errors(include_url=False))
    return "; ".join(
        f"{yaml_tree.field_name(path)}: {_message(each, path, None)}" for path, each in found
    )


def parse_policy(
    text: bytes, *, source: str, base: Path | None, default_name: str = "policy"
) -> LoadedPolicy:
    """The policy that these bytes hold.

    `default_name` names it when it doesn't name itself. Raises `PolicyError` only.
    """
    policy, problems = examine(text, base=base, default_name=default_name)
    if policy is None or problems:
        raise refusal(problems, source)
    return LoadedPolicy(policy=policy, text=text, source=source, base=base)


def refusal(problems: tuple[Problem, ...], source: str, *, hint: str = HINT_EXAMPLE) -> PolicyError:
    """The error that lists all problems (at least one)."""
    first, *more = problems
    if not more:
        field = f"{first.field}: " if first.field else ""
        where = f"{printable(source)}:{first.mark.line}:{first.mark.column}"
        return PolicyError(f"{field}{first.message}", where=where, hint=hint)
    lines = "".join(f"\n  {problem.line(source)}" for problem in problems)
    return PolicyError(f"{len(problems)} problems{lines}", where=printable(source), hint=hint)


# ---- examining a text


class Examined(NamedTuple):
    """The policy of a text, None where a field is wrong, and its problems in the text's order.

    There may be a policy and problems: of the files that it names.
    """

    policy: Policy | None
    problems: tuple[Problem, ...]


def examine(text: bytes, *, base: Path | None, default_name: str = "policy") -> Examined:
    """The policy these bytes hold, and what is wrong with them.

    Files are looked for once no field is wrong.
    """
    tree = yaml_tree.read_tree(text)
    if ("belljar",) not in tree.keys and (isinstance(tree.value, dict) or tree.problems):
        return Examined(None, (_no_policy(tree),))
    if tree.problems:
        return Examined(None, _in_order(tree.problems))
    if not isinstance(tree.value, dict):
        # It may be anyone's secret: nothing of it is shown.
        why = f"expected a mapping of fields, as in `risk: high`, got {kind_of(tree.value)}"
        return Examined(None, (_problem(tree, (), why),))
    value = dict(tree.value)
    with suppress(ValueError):  # a file's name that can't be a policy's
        value.setdefault("name", kinds.NAME.read(default_name))
    try:
        policy = Policy.model_validate(value)
    except ValidationError as error:
        wrong: dict[str, Problem] = {}
        for each in error.errors(include_url=False):
            problem = _field_problem(tree, each)
            wrong.setdefault(problem.field, problem)
        return Examined(None, _in_order(wrong.values()))
    found = [*_file_problems(policy, tree, base), *_own_problems(policy.network, tree, base)]
    return Examined(policy, _in_order(found))


def _field_problem(tree: YamlTree, error: Any) -> Problem:  # noqa: ANN401 - pydantic's ErrorDetails
    path, model = _located(error)
    is_key = error["loc"][-1:] == ("[key]",) or error["type"] == "extra_forbidden"
    mark = yaml_tree.closest_mark(tree, path, key=is_key)
    message = _message(error, path, model)
    return Problem(mark=mark, field=yaml_tree.field_name(path), message=message)


def _in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.mark))


def _problem(tree: YamlTree, path: yaml_tree.Path, message: str) -> Problem:
    mark = yaml_tree.closest_mark(tree, path)
    return Problem(mark=mark, field=yaml_tree.field_name(path), message=message)


def _no_policy(tree: YamlTree) -> Problem:
    """It may be anyone's secret: nothing of it is shown."""
    first = min(tree.problems, key=lambda problem: problem.mark, default=None)
    if first is not None and first.is_of_the_file:
        return first
    mark = first.mark if first is not None else yaml_tree.closest_mark(tree, ())
    what = "is not valid YAML for a policy, and has" if first is not None else "has"
    why = f"not a policy: it {what} no field `belljar`, as in `belljar: 1`"
    return Problem(mark=mark, field="", message=why)


# ---- pydantic's errors


def _located(error: Any) -> tuple[yaml_tree.Path, type[BaseModel] | None]:  # noqa: ANN401
    """The path as written, and the model whose field (or missing field) its last part is.

    `error`: pydantic's ErrorDetails, in which a stand-in's kind stands behind its name.
    """
    refusal = error.get("ctx", {}).get("error")
    path = error["loc"][:-1] if error["loc"][-1:] == ("[key]",) else error["loc"]
    path = (*path, *(refusal.path if isinstance(refusal, AtError) else ()))
    if path[:2] == ("network", "stand_ins") and len(path) > 3 and path[3] in MODELS:
        models = {(): MODELS[path[3]], **_STAND_IN_MODELS}
        path, below = (*path[:3], *path[4:]), path[4:-1]
    else:
        models, below = {**_MODELS}, path[:-1]
    return path, models.get(tuple(part for part in below if isinstance(part, str)))


def _message(
    error: Any,  # noqa: ANN401 - pydantic's ErrorDetails
    path: yaml_tree.Path,
    model: type[BaseModel] | None,
) -> str:
    # Pydantic's own messages speak of Python's types, not of what an author wrote.
    match error["type"]:
        case "extra_forbidden":
            allowed = list(model.model_fields) if model else []
            hint = did_you_mean(str(path[-1]), allowed) or "."
            return f"there is no such field{hint} Allowed: {listed(allowed)}"
        case "missing":
            field = model.model_fields.get(str(path[-1])) if model else None
            about = field.description if field is not None and field.description else ""
            return f"is missing. {about}".rstrip()
        case "value_error":
            return str(error["ctx"]["error"])
        case "model_type" | "dict_type" | "mapping_type" | "model_attributes_type":
            return str(kinds.expected("a mapping of fields to values", error["input"]))
        case "bool_type":
            return str(kinds.expected("`true` or `false`", error["input"]))
        case "string_type":
            return str(kinds.expected("text", error["input"]))
        case "too_long":
            return f"too many; at most {error['ctx']['max_length']} are allowed"
    return printable(str(error["msg"]), max_chars=200)


# ---- files that a policy names


def _file_problems(policy: Policy, tree: YamlTree, base: Path | None) -> Iterator[Problem]:
    """What is wrong with the files that are copied into cells."""
    lists: dict[yaml_tree.Path, tuple[FileCopy, ...]] = {("files",): policy.files}
    for name, item in (policy.network.stand_ins if policy.network is not None else {}).items():
        if isinstance(item, CellStandIn):
            lists["network", "stand_ins", name, "files"] = item.files
    for where, files in lists.items():
        total_bytes = 0
        for index, file in enumerate(files):
            try:
                total_bytes += _size_of(own_directory(base), file.source)
            except (OSError, ValueError) as exc:
                why = f"{quoted(file.source)} can't be copied in: {reason(exc)}; {FILE_RULE}"
                yield _problem(tree, (*where, index, "source"), why)
        if total_bytes > MAX_FILES_BYTES:
            size, most = format_size(total_bytes), format_size(MAX_FILES_BYTES)
            why = f"{size} together; at most {most} are allowed. Put more into an image"
            yield _problem(tree, where, why)


def _own_problems(network: Network | None, tree: YamlTree, base: Path | None) -> Iterator[Problem]:
    """What is wrong with the files and directories that stand-ins name."""
    for name, item in (network.stand_ins if network is not None else {}).items():
        own_field, own = item.own_path()
        try:
            if not own_field:
                continue
            home, folder = own_directory(base), own
            if own_field != item.directory_field:
                folder = str(PurePosixPath(own).parent)
                _size_of(home, own)
            with open_beneath(home, folder) as fd:
                found, above = os.fstat(fd), home.stat()
            if not stat.S_ISDIR(found.st_mode):
                raise ValueError("it is not a directory")
            # The policy and everything beside it would be shown to the stand-in.
            if os.path.samestat(found, above):
                raise ValueError("it is not in a directory of its own")
        except (OSError, ValueError) as exc:
            rule = "" if isinstance(exc, FileNotFoundError) else f"; {_OWN_RULE}"
            why = f"{quoted(own)} can't be used: {reason(exc)}{rule}"
            yield _problem(tree, ("network", "stand_ins", name, own_field), why)


def _size_of(home: Path, name: str) -> int:
    with open_regular(home, name) as fd:
        size_bytes = os.fstat(fd).st_size
    if size_bytes > MAX_FILE_BYTES:
        raise ValueError(f"its size is {format_size(size_bytes)}")
    return size_bytes
