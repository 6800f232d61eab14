"""What pydantic refuses of a policy, in the words of its author."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from belljar.dataclass import replace
from belljar.errors import PolicyError
from belljar.policy import fields as kinds
from belljar.policy.fields import AtError, Strict, models_of
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.stand_ins import MODELS
from belljar.policy.yaml_tree import Path, field_name
from belljar.units import did_you_mean, listed, printable, quoted


def with_changes(loaded: LoadedPolicy, changes: Mapping[str, Any]) -> LoadedPolicy:
    """Replace fields, and check them anew. Raises `PolicyError`."""
    model = type(loaded.policy)
    fields = {name: getattr(loaded.policy, name) for name in model.model_fields}
    try:
        changed = model.model_validate({**fields, **changes}, strict=False)
    except ValidationError as error:
        wrong = printable(wrong_fields(error), max_chars=600)
        what = f"the policy can't be changed as asked: {wrong}"
        hint = "change the task's sandbox, or use your own policy: `belljar run --policy FILE`"
        raise PolicyError(what, where=printable(loaded.source), hint=hint) from error
    return replace(loaded, policy=changed)


def wrong_fields(error: ValidationError) -> str:
    found = error.errors(include_url=False)
    return "; ".join(f"{field_name(path_of(each))}: {message_of(each)}" for each in found)


def path_of(error: Any) -> Path:  # noqa: ANN401 - pydantic's ErrorDetails
    refusal = error.get("ctx", {}).get("error")
    path: Path = error["loc"][:-1] if error["loc"][-1:] == ("[key]",) else error["loc"]
    path = (*path, *(refusal.path if isinstance(refusal, AtError) else ()))
    # Pydantic puts a stand-in's kind behind its name.
    if path[:2] == ("network", "stand_ins") and len(path) > 3 and path[3] in MODELS:
        path = (*path[:3], *path[4:])
    return path


def message_of(error: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    match error["type"]:
        case "extra_forbidden":
            hint = did_you_mean(
                str(error["loc"][-1]),
                sorted({name for each in models_of(Strict) for name in each.model_fields}),
            )
            return f"there is no such field{hint}"
        case "missing":
            return "is missing"
        case "enum":
            words = re.findall("'([^']*)'", error["ctx"]["expected"])
            hint = did_you_mean(error["input"], words)
            return f"{quoted(error['input'])} is not one of {listed(words)}{hint}"
        case "tuple_type":
            return str(kinds.expected("a list", error["input"]))
        case "value_error":
            return str(error["ctx"]["error"])
        case "model_type" | "dict_type" | "mapping_type" | "model_attributes_type":
            return str(kinds.expected("a mapping of fields to values", error["input"]))
    return printable(str(error["msg"]), max_chars=200)
