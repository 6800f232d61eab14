"""Reads a policy file, or Python's values, into a `Policy`."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from belljar.errors import PolicyError
from belljar.policy import fields as kinds
from belljar.policy import loaded, yaml_tree
from belljar.policy.files import OutsideError, open_beneath, open_regular, read_regular, reason
from belljar.policy.loaded import PRESETS, LoadedPolicy, own_directory, preset_text
from belljar.policy.model import Policy
from belljar.policy.network import Network
from belljar.policy.sections import FileCopy
from belljar.policy.stand_ins import CellStandIn
from belljar.policy.yaml_tree import Problem, YamlTree
from belljar.units import did_you_mean, format_size, kind_of, printable, quoted

MAX_FILES_BYTES: Final = 500 << 20  # they are copied into each cell at its start
HINT_EXAMPLE: Final = "correct the policy; `belljar policy show high` prints a valid one"
_OWN_RULE: Final = (
    "the stand-in sees the whole directory: use one below the policy's directory, with only what "
    "the model may see"
)


def load_policy(path: str | os.PathLike[str]) -> LoadedPolicy:
    """Read a policy file. Raises `PolicyError` with all faults."""
    file = Path(path)
    text, base = read_policy_file(file), file.parent.absolute()
    return parse_policy(text, source=str(path), base=base, default_name=file.stem)


def read_policy_file(file: Path) -> bytes:
    """Return at most one byte over the limit."""
    try:
        return read_regular(file.parent, file.name or ".", yaml_tree.MAX_BYTES + 1)
    except (OSError, ValueError) as exc:
        hint = f"give a policy file, or a preset: {', '.join(PRESETS)}"
        if isinstance(exc, OutsideError):
            hint = "put the file itself there, or name it where it is"
        what = f"the policy can't be read: {reason(exc)}"
        raise PolicyError(what, where=printable(str(file)), hint=hint) from exc


def load_preset(name: str) -> LoadedPolicy:
    """Read one of Belljar's own policies. Raises `PolicyError`."""
    if name not in PRESETS:
        near = did_you_mean(name, PRESETS)
        hint = f"use one of {', '.join(PRESETS)}, or a policy file"
        raise PolicyError(f"there is no preset {quoted(name)}{near}", hint=hint)
    return parse_policy(preset_text(name), source=f"preset:{name}", base=None, default_name=name)


def resolve_policy(ref: str | os.PathLike[str] | None) -> LoadedPolicy:
    """Read a preset (None: `high`) or file. Raises `PolicyError`."""
    if ref is None:
        return load_preset(loaded.DEFAULT_PRESET)
    if isinstance(ref, os.PathLike):
        return load_policy(ref)
    looks_like_path = "\0" not in ref and ("/" in ref or "." in ref or os.path.lexists(ref))
    return load_policy(ref) if ref not in PRESETS and looks_like_path else load_preset(ref)


def policy_of(policy: Policy | Mapping[str, Any]) -> LoadedPolicy:
    """Check a policy without `files`. Raises `PolicyError`."""
    source, fields = "a dict", policy
    if isinstance(policy, Policy):  # read anew: `model_copy` and `model_construct` check nothing
        source, fields = "a Policy", policy.model_dump(mode="json", exclude_none=True)
    try:
        text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False, default=dict)
        encoded = text.encode()  # a lone surrogate can't be encoded
    # A dict of Python's may contain itself, or what JSON doesn't have.
    except (ValueError, TypeError, RecursionError) as error:
        raise PolicyError(printable(str(error)), where=source, hint=HINT_EXAMPLE) from error
    return parse_policy(encoded, source=source, base=None)


def parse_policy(
    text: bytes, *, source: str, base: Path | None, default_name: str = "policy"
) -> LoadedPolicy:
    """Read a policy from bytes. Raises `PolicyError` only."""
    policy, problems = examine(text, base=base, default_name=default_name)
    if policy is None or problems:
        raise refusal(problems, source)
    return LoadedPolicy(policy=policy, text=text, source=source, base=base)


def refusal(problems: tuple[Problem, ...], source: str, *, hint: str = HINT_EXAMPLE) -> PolicyError:
    """Return the error that lists all problems."""
    first, *more = problems
    if not more:
        field = f"{first.field}: " if first.field else ""
        where = f"{printable(source)}:{first.mark.line}:{first.mark.column}"
        return PolicyError(f"{field}{first.message}", where=where, hint=hint)
    lines = "".join(f"\n  {problem.line(source)}" for problem in problems)
    return PolicyError(f"{len(problems)} problems{lines}", where=printable(source), hint=hint)


class Examined(NamedTuple):
    """A policy, if any, and its problems in order."""

    policy: Policy | None
    problems: tuple[Problem, ...]


def examine(text: bytes, *, base: Path | None, default_name: str = "policy") -> Examined:
    """Return a text's policy and problems."""
    tree = yaml_tree.read_tree(text)
    first = tree.problem
    is_read = isinstance(tree.value, dict) if first is None else len(text) <= yaml_tree.MAX_BYTES
    if is_read and ("belljar",) not in tree.keys:
        # It may be anyone's secret: nothing of it is shown.
        mark = first.mark if first is not None else yaml_tree.closest_mark(tree, ())
        what = "is not valid YAML for a policy, and has" if first is not None else "has"
        why = f"not a policy: it {what} no field `belljar`, as in `belljar: 1`"
        first = Problem(mark=mark, field="", message=why)
    if first is not None:
        return Examined(None, (first,))
    if not isinstance(tree.value, dict):
        why = f"expected a mapping of fields, as in `risk: high`, got {kind_of(tree.value)}"
        return Examined(None, (_problem(tree, (), why),))
    value = dict(tree.value)
    with suppress(ValueError):  # a file's name that can't be a policy's
        value.setdefault("name", kinds.NAME.read(default_name))
    try:
        policy = Policy.model_validate(value)
    except ValidationError as error:
        return Examined(None, problems_of(error, tree))
    found = [*_file_problems(policy, tree, base), *_own_problems(policy.network, tree, base)]
    return Examined(policy, tuple(sorted(found, key=attrgetter("mark"))))


def problems_of(error: ValidationError, tree: YamlTree) -> tuple[Problem, ...]:
    """Return one problem a field, in the text's order."""
    wrong = dict[str, Problem]()
    for each in error.errors(include_url=False):
        is_key = each["loc"][-1:] == ("[key]",) or each["type"] == "extra_forbidden"
        problem = _problem(tree, kinds.path_of(each), kinds.message_of(each), key=is_key)
        wrong.setdefault(problem.field, problem)
    return tuple(sorted(wrong.values(), key=attrgetter("mark")))


def _problem(tree: YamlTree, path: yaml_tree.Path, message: str, *, key: bool = False) -> Problem:
    mark = yaml_tree.closest_mark(tree, path, key=key)
    return Problem(mark=mark, field=yaml_tree.field_name(path), message=message)


def _file_problems(policy: Policy, tree: YamlTree, base: Path | None) -> Iterator[Problem]:
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
                why = f"{quoted(file.source)} can't be copied in: {reason(exc)}; {loaded.FILE_RULE}"
                yield _problem(tree, (*where, index, "source"), why)
        if total_bytes > MAX_FILES_BYTES:
            size, most = format_size(total_bytes), format_size(MAX_FILES_BYTES)
            why = f"{size} together; at most {most} are allowed. Put more into an image"
            yield _problem(tree, where, why)


def _own_problems(network: Network | None, tree: YamlTree, base: Path | None) -> Iterator[Problem]:
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
    if size_bytes > loaded.MAX_FILE_BYTES:
        raise ValueError(f"its size is {format_size(size_bytes)}")
    return size_bytes
