"""The model and its schema."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from belljar.policy.limits import Resources, Risk, Tier
from belljar.policy.model import Policy
from belljar.policy.sections import FileCopy

LEAST: dict[str, Any] = {"belljar": 1, "risk": "high"}


def test_a_program_may_give_what_a_file_can_not_write() -> None:
    """Within the same bounds; it can't be changed, and a pickled one is the same."""
    resources = Resources(cpus=2, memory_bytes=(64 << 20) + 1, lifetime_s=61.5, exec_timeout_s=1.25)
    files = (FileCopy(source="a", target="b", mode=None),)
    policy = Policy(belljar=1, risk=Risk.HIGH, tier=Tier.MICROVM, resources=resources, files=files)
    assert policy.resources == resources
    fields = {name: getattr(policy, name) for name in Policy.model_fields}
    changed = Policy.model_validate({**fields, "env": {"A": "b"}})
    assert (changed.resources, changed.files) == (policy.resources, policy.files)
    with pytest.raises(ValidationError):
        setattr(policy, "risk", Risk.LOW)  # noqa: B010 - mypy would refuse the plain form, rightly
    again = pickle.loads(pickle.dumps(policy))  # noqa: S301 - our own bytes
    assert (again, hash(again)) == (policy, hash(policy))
    for wrong in (Resources(cpus=0), Resources(lifetime_s=float("inf"))):
        with pytest.raises(ValidationError):
            Policy(belljar=1, risk=Risk.HIGH, resources=wrong)


def test_a_command_never_outlives_its_cell() -> None:
    """A default shrinks with a shorter lifetime."""
    minute = {"lifetime": "1m"}
    assert Policy.model_validate({**LEAST, "resources": minute}).resources.exec_timeout_s == 60
    with pytest.raises(ValidationError, match="at most `lifetime`"):
        Policy.model_validate({**LEAST, "resources": {**minute, "exec_timeout": "61s"}})
    files = [{"source": "a", "target": "/x//y"}, {"source": "b", "target": "/x/y"}]
    with pytest.raises(ValidationError, match="two files"):
        Policy.model_validate({**LEAST, "files": files})
