"""A health check is asked as Compose would, oftener, and for no longer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.util._sandbox.docker.service import service_healthcheck_time

from belljar.compose.translate import read_health
from belljar.compose.values import CannotKeepError, seconds
from belljar.image.config import HealthCheck, ImageConfig, image_health
from belljar.policy.stand_ins import Health


def health(**check: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML values
    """What a target cell is asked."""
    return read_health(check)


@pytest.mark.parametrize("check", [{"test": ["NONE"]}, {"test": "x", "disable": "yes"}])
def test_nothing_to_ask(check: dict[str, Any]) -> None:
    """What the file switches off is off in the image too."""
    assert read_health(check) == {"image": False}
    assert Health.model_validate(read_health(check), strict=False).image is False


def test_an_empty_test_is_none() -> None:
    """As for Docker: the image's check, with the file's times; alone it says nothing."""
    assert read_health({"test": []}) == {}
    assert read_health({"test": [], "retries": 5}) == read_health({"retries": 5})


def test_times_alone_are_of_the_images_check() -> None:
    """Docker merges field by field: the image's test, and its times where the file has none."""
    config = ImageConfig(
        healthcheck=HealthCheck(test=("CMD", "up"), interval_ns=10**9, start_period_ns=7 * 10**9)
    )
    found = Health.model_validate(health(interval="2s", retries=5, timeout="1s"), strict=False)
    assert found.image
    asked = image_health(config, found.times)
    whole = health(test=["CMD", "up"], interval="2s", retries=5, timeout="1s", start_period="7s")
    assert asked is not None
    assert asked["command"] == ["up"]
    read = Health.model_validate(whole, strict=False)
    for name in ("interval", "timeout", "retries", "within"):
        assert asked[name] == getattr(read, name)
    assert image_health(ImageConfig(), found.times) is None


def test_what_is_no_check_is_refused() -> None:
    """By the service's name, or with what was written."""
    checks: list[tuple[str, dict[str, Any]]] = [
        ("no text", {"test": ["x", []]}),
        ("none of CMD", {"test": ["curl", "x"]}),
        ("none of CMD", {"test": ["CMD"]}),
        ("no command", {"test": {"a": 1}}),
        ("made_up", {"test": "x", "made_up": 1}),
        ("soon, which is no time", {"test": "x", "interval": "soon"}),
    ]
    for named, check in checks:
        with pytest.raises(CannotKeepError, match=named):
            read_health(check)


_TIMES = st.sampled_from(["100ms", "500ms", "1s", "2s", "10s", "1m30s", "5m", "1.5h"])


@given(
    st.fixed_dictionaries(
        {"test": st.just("x")},
        optional={
            "interval": _TIMES,
            "timeout": _TIMES,
            "start_period": _TIMES,
            "retries": st.integers(1, 500),
        },
    )
)
def test_whatever_the_times(check: dict[str, Any]) -> None:
    """A policy takes them; no longer than Inspect would wait; at most a second between questions,
    unless there would be too many; and patience enough for each."""
    found = health(**check)
    read = Health.model_validate(found, strict=False)
    assert read.within is not None
    assert read.within <= max(1, service_healthcheck_time({"healthcheck": check}))  # type: ignore[typeddict-item]
    patience_s = check.get("retries", 3) * seconds(check.get("interval", "30s")) + seconds(
        check.get("start_period", "0")
    )
    assert read.retries * read.interval >= min(patience_s, 24 * 3600) * 0.999
    assert read.interval <= 1.0 or read.retries >= 999
