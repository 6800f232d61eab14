"""What a cell may consume, as written and as used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from belljar.policy.limits import Resources
from belljar.policy.sections import ResourcesField, ResourcesText


class Holder(BaseModel):
    """A model with the field."""

    resources: ResourcesField


@given(
    st.builds(
        Resources,
        cpus=st.integers(1, 64),
        memory_bytes=st.integers(64 << 20, 1 << 30),
        disk_bytes=st.integers(16 << 20, 1 << 30),
        lifetime_s=st.integers(700, 90_000).map(float),
    )
)
def test_resources_made_by_a_program_pass_as_they_are(resources: Resources) -> None:
    """They go through a file's bounds and come out the same."""
    assert Holder(resources=resources).resources == resources


def test_a_default_exec_timeout_shrinks_to_a_short_lifetime() -> None:
    """A written one that is longer is refused."""
    assert ResourcesText.model_validate({"lifetime": "1m"}).resources().exec_timeout_s == 60.0
    with pytest.raises(ValidationError, match="outlive"):
        ResourcesText.model_validate({"lifetime": "1m", "exec_timeout": "2m"})
    with pytest.raises(ValidationError, match="out of range"):
        Holder(resources=Resources(memory_bytes=1))
