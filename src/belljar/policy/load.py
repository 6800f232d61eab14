"""A policy file → `Policy`, or a `PolicyError` that names file, line, column and field, says what
is allowed and suggests the nearest name.

All that is wrong is told at once. Files to be copied in are looked at here too (they are the
author's input, as the policy is), and nothing else of the host.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError

from belljar.errors import PolicyError
from belljar.policy import fields as kinds
from belljar.policy import yaml_tree
from belljar.policy.files import FileCopy
from belljar.policy.host_tools import HostToolsText
from belljar.policy.loaded import DEFAULT_PRESET, PRESETS, LoadedPolicy, preset_text
from belljar.policy.model import Policy
from belljar.policy.network import Located, Network, locate
from belljar.policy.regular import OutsideError, open_beneath, open_regular, read_regular
from belljar.policy.resources import ResourcesText
from belljar.policy.rights import Rights
from belljar.policy.signals import ActionsText, DecoyText, GuardText, ProtectedText, StopsText
from belljar.policy.stand_in import At, StandIn
from belljar.policy.stand_ins import CellStandIn
from belljar.policy.yaml_tree import Problem, Tree
from belljar.units import format_size, printable

MAX_FILE_BYTES: Final = 100 << 20
MAX_FILES_BYTES: Final = 500 << 20
_MODELS: Final[dict[tuple[str, ...], type[BaseModel]]] = {
    (): Policy,
    ("resources",): ResourcesText,
    ("files",): FileCopy,
    ("host_tools",): HostToolsText,
    ("rights",): Rights,
    ("decoys",): DecoyText,
    ("guard",): GuardText,
    ("guard", "protect"): ProtectedText,
    ("guard", "action"): ActionsText,
    ("on",): StopsText,
}


def read_copied(loaded: LoadedPolicy, file: FileCopy) -> bytes:
    """As `LoadedPolicy.read_file`."""
    try:
        content = read_regular(_home(loaded.base), file.source, MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {format_size(MAX_FILE_BYTES)}")
        return content
    except (OSError, ValueError) as exc:
        what = f"the file {kinds.quoted(file.source)} can't be copied in: {_reason(exc)}"
        raise PolicyError(
            what, where=printable(loaded.source), hint=f"correct `files`: {_FILE_RULE}"
        ) from exc


_FILE_RULE: Final = (
    f"each source is a readable regular file of at most {format_size(MAX_FILE_BYTES)} below the "
    f"policy's directory"
)


def load_policy(path: str | os.PathLike[str]) -> LoadedPolicy:
    """The policy in a file of at most 64 KiB, which is no link out of its directory.

    Raises:
        PolicyError: it can't be read or isn't a valid policy. The message tells everything that is
            wrong, each with line and column.
    """
    file = Path(path)
    return parse_policy(
        read_policy_file(file),
        source=str(path),
        base=file.parent.absolute(),
        default_name=file.stem,
    )


def read_policy_file(file: Path) -> bytes:
    """The bytes of a policy file, at most one more than allowed (so that too large is seen).

    Raises `PolicyError` when it can't be read.
    """
    try:
        return read_regular(file.parent, file.name or ".", yaml_tree.MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        raise PolicyError(
            f"the policy can't be read: {_reason(exc)}",
            where=printable(str(file)),
            hint="put the file itself there, or name it where it is"
            if isinstance(exc, OutsideError)
            else f"give a policy file, or a preset: {', '.join(PRESETS)}",
        ) from exc


def load_preset(name: str) -> LoadedPolicy:
    """One of Belljar's own policies: low, medium, high or critical.

    Raises `PolicyError` for another name.
    """
    if name not in PRESETS:
        near = kinds.nearest(name, PRESETS)
        hint = f"; did you mean `{near}`?" if near else ""
        raise PolicyError(
            f"there is no preset {kinds.quoted(name)}{hint}",
            hint=f"use one of {', '.join(PRESETS)}, or a policy file",
        )
    return parse_policy(preset_text(name), source=f"preset:{name}", base=None, default_name=name)


def resolve_policy(ref: str | os.PathLike[str] | None) -> LoadedPolicy:
    """A preset's name or a file's path; None is the preset `high`.

    Of a string a preset's name wins: write `./high`, or `Path("high")`, for a file of that name.

    Raises:
        PolicyError: as `load_policy` and `load_preset`.
    """
    if ref is None:
        return load_preset(DEFAULT_PRESET)
    if isinstance(ref, os.PathLike):
        return load_policy(ref)
    looks_like_path = "\0" not in ref and ("/" in ref or "." in ref or os.path.lexists(ref))
    return load_policy(ref) if ref not in PRESETS and looks_like_path else load_preset(ref)


def with_changes(loaded: LoadedPolicy, changes: Mapping[str, Any]) -> LoadedPolicy:
    """The same policy with some fields replaced, checked again as if it had been written so.

    Raises `PolicyError`.
    """
    model = type(loaded.policy)
    fields = {name: getattr(loaded.policy, name) for name in model.model_fields}
    try:
        changed = model.model_validate({**fields, **changes}, strict=False)
    except ValidationError as error:
        wrong = (
            f"{yaml_tree.field_name(locate(each['loc']).path)}: {_message(each, each['loc'], None)}"
            for each in error.errors(include_url=False)
        )
        raise PolicyError(
            f"the policy can't be changed as asked: {printable('; '.join(wrong), max_chars=600)}",
            where=printable(loaded.source),
            hint="change the task's sandbox, or use your own policy:"
            " `belljar run --policy FILE` or `inspect eval --sandbox belljar:FILE`",
        ) from error
    return replace(loaded, policy=changed)


def parse_policy(
    text: bytes, *, source: str, base: Path | None, default_name: str = "policy"
) -> LoadedPolicy:
    """The policy that these bytes hold.

    `default_name` names it when it doesn't name itself. Raises `PolicyError` only.
    """
    policy, problems, _ = examine(text, base=base, default_name=default_name)
    if policy is None or problems:
        raise refusal(problems, source)
    return LoadedPolicy(policy=policy, text=text, source=source, base=base)


class Examined(NamedTuple):
    """What examining a policy's text found.

    Attributes:
        policy: None when a field is wrong or the text can't be read; there is a problem then.
        problems: all that is wrong, in the order of the text.
        sound: the policy without its wrong fields, for checks of what the others name; None when
            not even that can be read. Never to be carried out.
    """

    policy: Policy | None
    problems: tuple[Problem, ...]
    sound: Policy | None


def examine(text: bytes, *, base: Path | None, default_name: str = "policy") -> Examined:
    """The policy these bytes hold, and all that is wrong with them."""
    tree = yaml_tree.read_tree(text)
    if ("belljar",) not in tree.keys and (isinstance(tree.value, dict) or tree.problems):
        return Examined(None, (_no_policy(tree),), None)
    if tree.problems and not (tree.is_whole and isinstance(tree.value, dict)):
        return Examined(None, _in_order(tree.problems), None)
    if not isinstance(tree.value, dict):
        message = (
            f"a policy is a mapping of fields, as in `risk: high`, but this is "
            f"{kinds.kind_of(tree.value)}"
        )
        return Examined(
            None, (Problem(mark=yaml_tree.closest_mark(tree, ()), field="", message=message),), None
        )
    wrong, value, rounds = list(tree.problems), _named(tree.value, default_name), 0
    sound, errors = _validated(value)
    while errors and rounds < _MAX_ROUNDS:
        found = [_problem(tree, error) for error in errors]
        known = {problem.field for problem in wrong}
        # A stand-in may wait for one that was left out because it is wrong.
        wrong += [
            each
            for each in found
            if each.field not in known and not (rounds and ".awaits[" in each.field)
        ]
        value = _without(value, [_located(error).path for error in errors])
        sound, errors = _validated(value)
        rounds += 1
    if sound is not None:
        wrong += [*_file_problems(sound, tree, base), *_network_problems(sound.network, tree, base)]
    is_sound = not tree.problems and not rounds
    return Examined(sound if is_sound else None, _in_order(wrong), sound)


_MAX_ROUNDS: Final = 8  # one wrong value may hide others from the validator


def _validated(value: object) -> tuple[Policy | None, list[Any]]:
    try:
        return Policy.model_validate(value), []
    except ValidationError as error:
        return None, list(error.errors(include_url=False))


def _in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.mark))


def _without(value: Mapping[str, Any], wrong: Iterable[yaml_tree.Path]) -> dict[str, Any]:
    """A policy's fields without the fields and stand-ins that are wrong. One without a risk has
    the least: what is left is examined, and never carried out."""
    kept = dict(value)
    for path in wrong:
        network = kept.get("network")
        stand_ins = network.get("stand_ins") if isinstance(network, dict) else None
        if (
            path[:2] == ("network", "stand_ins")
            and len(path) > 2
            and isinstance(network, dict)
            and isinstance(stand_ins, dict)
        ):
            left = {name: item for name, item in stand_ins.items() if name != path[2]}
            kept["network"] = {**network, "stand_ins": left}
        elif path:
            kept.pop(str(path[0]), None)
    return {"belljar": 1, "risk": "low", "name": "policy", **kept}


def _no_policy(tree: Tree) -> Problem:
    """A file without the field that every policy has may be anything, a link's or a mistaken name's
    secret among it: nothing that it holds is shown, not even the names of its fields.
    """
    first = min(tree.problems, key=lambda problem: problem.mark, default=None)
    mark = first.mark if first is not None else yaml_tree.closest_mark(tree, ())
    if first is not None and first.is_of_the_file:
        return first
    what = "not YAML that a policy may hold, and" if first is not None else "not a policy:"
    return Problem(
        mark=mark,
        field="",
        message=f"{what} it has no field `belljar`, as in `belljar: 1`; nothing of it is shown",
    )


def _named(value: dict[str, Any], default_name: str) -> dict[str, Any]:
    if "name" in value:
        return value
    try:
        return {**value, "name": kinds.NAME.read(default_name)}
    except ValueError:
        return value


HINT_EXAMPLE: Final = "correct the policy; `belljar policy show high` prints a valid one"


def refusal(problems: tuple[Problem, ...], source: str, *, hint: str = HINT_EXAMPLE) -> PolicyError:
    """The error that lists all of them (at least one), each with its place in `source`."""
    first, *more = problems
    if not more:
        field = f"{first.field}: " if first.field else ""
        return PolicyError(
            f"{field}{first.message}",
            where=f"{printable(source)}:{first.mark.line}:{first.mark.column}",
            hint=hint,
        )
    lines = "".join(f"\n  {problem.line(source)}" for problem in problems)
    return PolicyError(f"{len(problems)} problems{lines}", where=printable(source), hint=hint)


def _located(error: Any) -> Located:  # noqa: ANN401 - pydantic's ErrorDetails
    refusal = error.get("ctx", {}).get("error")
    below = refusal.path if isinstance(refusal, At) else ()
    loc = error["loc"][:-1] if error["loc"][-1:] == ("[key]",) else error["loc"]
    return locate((*loc, *below))


def _problem(tree: Tree, error: Any) -> Problem:  # noqa: ANN401 - pydantic's ErrorDetails
    is_key = error["loc"][-1:] == ("[key]",)
    found = _located(error)
    unknown = error["type"] == "extra_forbidden"
    mark = yaml_tree.closest_mark(tree, found.path, key=is_key or unknown)
    model = found.model or _MODELS.get(
        tuple(part for part in found.path[:-1] if isinstance(part, str))
    )
    return Problem(
        mark=mark,
        field=yaml_tree.field_name(found.path),
        message=_message(error, found.path, model),
    )


def _message(
    error: Any,  # noqa: ANN401 - pydantic's ErrorDetails
    path: yaml_tree.Path,
    model: type[BaseModel] | None,
) -> str:
    match error["type"]:
        case "extra_forbidden":
            allowed = list(model.model_fields) if model else []
            near = kinds.nearest(str(path[-1]), allowed)
            hint = f"; did you mean `{near}`?" if near else ""
            return f"there is no such field{hint} Allowed: {kinds.listed(allowed)}".replace(
                "field Allowed", "field. Allowed"
            )
        case "missing":
            field = model.model_fields.get(str(path[-1])) if model else None
            about = field.description if field is not None and field.description else ""
            return f"is missing. {about}".rstrip()
        case "value_error":
            return str(error["ctx"]["error"])
        case "model_type" | "dict_type" | "mapping_type" | "model_attributes_type":
            return (
                f"a mapping of names to values is needed, but this is "
                f"{kinds.kind_of(error['input'])}"
            )
        case "too_long":
            return f"too many: at most {error['ctx']['max_length']}"
    return printable(str(error["msg"]), max_chars=200)


def _file_problems(policy: Policy, tree: Tree, base: Path | None) -> Iterator[Problem]:
    yield from _copy_problems(policy.files, ("files",), tree, base)
    for name, item in (policy.network.stand_ins if policy.network is not None else {}).items():
        if isinstance(item, CellStandIn):
            yield from _copy_problems(
                item.files, ("network", "stand_ins", name, "files"), tree, base
            )


def _copy_problems(
    files: tuple[FileCopy, ...], where: yaml_tree.Path, tree: Tree, base: Path | None
) -> Iterator[Problem]:
    total_bytes = 0
    for index, file in enumerate(files):
        path: yaml_tree.Path = (*where, index, "source")
        try:
            total_bytes += _source_size(base, file)
        except (OSError, ValueError) as exc:
            message = (
                f"{kinds.quoted(file.source)} can't be copied in: {_reason(exc)}; {_FILE_RULE}"
            )
            yield Problem(
                mark=yaml_tree.closest_mark(tree, path),
                field=yaml_tree.field_name(path),
                message=message,
            )
    if total_bytes > MAX_FILES_BYTES:
        message = (
            f"{format_size(total_bytes)} together; at most {format_size(MAX_FILES_BYTES)}. Put "
            f"much data into an image"
        )
        yield Problem(
            mark=yaml_tree.closest_mark(tree, where),
            field=yaml_tree.field_name(where),
            message=message,
        )


def _network_problems(network: Network | None, tree: Tree, base: Path | None) -> Iterator[Problem]:
    """What is wrong with the files and directories that stand-ins name."""
    for name, item in (network.stand_ins if network is not None else {}).items():
        own_field, own = item.own_path()
        try:
            if own_field:
                _check_own(base, item, own_field, own)
        except (OSError, ValueError) as exc:
            path: yaml_tree.Path = ("network", "stand_ins", name, own_field)
            rule = "" if isinstance(exc, FileNotFoundError) else f"; {_OWN_RULE}"
            message = f"{kinds.quoted(own)} can't be used: {_reason(exc)}{rule}"
            yield Problem(
                mark=yaml_tree.closest_mark(tree, path),
                field=yaml_tree.field_name(path),
                message=message,
            )


_OWN_RULE: Final = (
    "a stand-in sees the whole directory, so it is one below the policy's own, with nothing in it "
    "that the model may not see"
)


def _check_own(base: Path | None, item: StandIn, own_field: str, own: str) -> None:
    home = _home(base)
    if own_field == item.directory_field:
        folder = own
    else:
        folder = str(PurePosixPath(own).parent)
        with open_regular(home, own) as fd:
            size_bytes = os.fstat(fd).st_size
        if size_bytes > MAX_FILE_BYTES:
            raise ValueError(f"it has {format_size(size_bytes)}")
    with open_beneath(home, folder) as fd:
        found, above = os.fstat(fd), home.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError("it is no directory")
    if os.path.samestat(found, above):
        raise ValueError("it is not in a directory of its own")


def _reason(exc: OSError | ValueError) -> str:
    return (exc.strerror or type(exc).__name__).lower() if isinstance(exc, OSError) else str(exc)


def _home(base: Path | None) -> Path:
    """The directory that a policy's files stay below: one may come with someone else's evaluation,
    and must not take what is elsewhere on this host into a cell, by a path or by a link. Raises
    `ValueError` for a policy that has none.
    """
    if base is None:
        raise ValueError("this policy has no directory of its own")
    return base


def _source_size(base: Path | None, file: FileCopy) -> int:
    with open_regular(_home(base), file.source) as fd:
        size_bytes = os.fstat(fd).st_size
    if size_bytes > MAX_FILE_BYTES:
        raise ValueError(f"it has {format_size(size_bytes)}")
    return size_bytes
