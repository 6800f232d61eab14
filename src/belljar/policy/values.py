"""A policy from Python's values: a dict with a policy file's fields, or a `Policy`.

The values are written as the YAML that they stand for, which is then read as a file would be: one
reader, one set of rules, and a text for the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from belljar.errors import PolicyError
from belljar.policy.load import HINT_EXAMPLE, examine, with_changes
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.model import Policy
from belljar.units import printable

_DICT: Final = "a dict"
_MODEL: Final = "a Policy"


def policy_of(policy: Policy | Mapping[str, Any]) -> LoadedPolicy:
    """The loaded policy, checked as a file's. It has no directory, so it can't copy `files` in.

    Raises:
        PolicyError: as `load_policy`, but with each field's name and no line; or for a value that
            YAML has no word for.
    """
    if isinstance(policy, Policy):
        # Checked again: `model_copy` and `model_construct` check nothing
        if policy.files:
            raise PolicyError(
                "files: a Policy has no directory that they could be copied from",
                where=_MODEL,
                hint="write the policy as a file, or use `Cell.write_file`",
            )
        unchecked = LoadedPolicy(policy=policy, text=b"", source=_MODEL)
        checked = with_changes(unchecked, {})
        return replace(checked, text=json.dumps(checked.policy.to_json(), indent=2).encode())
    try:
        text = json.dumps(_plain(policy), indent=2, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:  # a lone surrogate is a ValueError, too
        raise PolicyError(printable(str(error)), where=_DICT, hint=HINT_EXAMPLE) from error
    examined = examine(text, base=None)
    if examined.policy is None or examined.problems:
        found = [f"{each.field}: {each.message}".removeprefix(": ") for each in examined.problems]
        what = found[0] if len(found) == 1 else "\n  ".join((f"{len(found)} problems", *found))
        raise PolicyError(what, where=_DICT, hint=HINT_EXAMPLE)
    return LoadedPolicy(policy=examined.policy, text=text, source=_DICT)


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON values
    """The value as lists and dicts. Raises `ValueError` for what a YAML file can't hold."""
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
