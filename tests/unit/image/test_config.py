"""What an image says of its processes, and what a cell makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.dataclass import json_of
from belljar.image.config import HealthCheck, ImageConfig, config_of, image_health
from belljar.image.layers import LayerError

SECOND = 1_000_000_000
TIMES = ("Interval", "Timeout", "StartPeriod", "StartInterval", "Retries")


def read(**config: Any) -> ImageConfig:  # noqa: ANN401 - JSON
    return config_of({"config": config})


@pytest.mark.promise("1.6")
def test_everything_that_a_dockerfile_states() -> None:
    """Each key of it is kept as it is; Docker clears an entrypoint by an empty word."""
    check = {"Test": ["CMD-SHELL", "up"], "Interval": 2 * SECOND, "Timeout": SECOND, "Retries": 4}
    found = read(
        Env=["A=b=c"],
        User="app:staff",
        WorkingDir="/srv//app/",
        Entrypoint=["/enter"],
        Cmd=["serve"],
        Healthcheck={**check, "StartPeriod": 3, "StartInterval": 5},
        Shell=["/bin/bash", "-c"],
        Volumes={"/var/b": {}, "/a": {}},
        StopSignal="SIGINT",
        OnBuild=["RUN make"],
    )
    times = {"interval_ns": 2 * SECOND, "timeout_ns": SECOND, "start_period_ns": 3}
    assert found.healthcheck == HealthCheck(
        test=("CMD-SHELL", "up"), start_interval_ns=5, retries=4, **times
    )
    assert replace(found, healthcheck=None) == ImageConfig(  # noqa: S604 - no process
        env={"A": "b=c"},
        user="app:staff",
        workdir="/srv/app",
        entrypoint=("/enter",),
        cmd=("serve",),
        shell=("/bin/bash", "-c"),
        volumes=("/a", "/var/b"),
        stop_signal="SIGINT",
        on_build=("RUN make",),
    )
    assert read(Entrypoint=[""], Cmd=["serve"]).entrypoint == ()
    assert read(Entrypoint=["", "x"]).entrypoint == ("", "x")


def test_a_check_is_a_command_or_for_the_images_shell() -> None:
    """Text is for the image's `SHELL` or `/bin/sh -c`; a list of words is the command."""
    for test, shell, command in (
        (["CMD-SHELL", "curl x | grep y"], [], ["/bin/sh", "-c", "curl x | grep y"]),
        (["CMD-SHELL", "curl x"], ["/bin/bash", "-ec"], ["/bin/bash", "-ec", "curl x"]),
        (["CMD", "curl"], ["/bin/bash", "-c"], ["curl"]),
    ):
        found = image_health(read(Healthcheck={"Test": test}, Shell=shell))
        assert found is not None
        assert found["command"] == command
    none: tuple[object, ...] = (None, {}, {"Test": []}, {"Test": ["NONE"]}, {"Interval": 1})
    assert not any(image_health(read(Healthcheck=check)) for check in none)


UP = {"Test": ["CMD", "up"]}
REFUSED: list[dict[str, Any]] = [
    *({"Healthcheck": check} for check in ({"Test": "up"}, {"Test": ["CMD"]})),
    {"Healthcheck": {**UP, "Interval": -1}},
    {"Healthcheck": {**UP, "Retries": 1 << 63}},
    {"Shell": "bash"},
    {"Volumes": {"a": {}}},
    {"Volumes": {f"/{n}": {} for n in range(101)}},
    {"Volumes": {"/" + "a" * 256: {}}},
    {"OnBuild": "RUN make"},
    {"Env": ["=x"]},
    {"Cmd": ["a\0b"]},
]


@pytest.mark.parametrize("config", REFUSED)
def test_what_can_not_be_meant_is_refused(config: dict[str, Any]) -> None:
    """A configuration that Docker would not write is no image's."""
    with pytest.raises(LayerError):
        read(**config)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_WORDS = st.sampled_from(["CMD", "CMD-SHELL", "NONE", "x", ""])
_CHECK = st.fixed_dictionaries(
    {}, optional={"Test": st.lists(_WORDS | _JSON, max_size=3), **dict.fromkeys(TIMES, _JSON)}
)
_KEYS = ["Env", "User", "WorkingDir", "Entrypoint", "Cmd", "Healthcheck", "Shell", "Volumes"]
_KEYS += ["StopSignal", "OnBuild"]


@pytest.mark.promise("1.6")
@given(st.dictionaries(st.sampled_from(_KEYS), _JSON | _CHECK))
def test_any_configuration_is_read_or_refused(config: dict[str, Any]) -> None:
    """Whatever a registry sends; what is read can be stored, shown and asked."""
    try:
        found = config_of({"config": config})
    except LayerError:
        return
    json.dumps(json_of(found))
    if (health := image_health(found)) is not None:
        assert 1 <= health["retries"] <= 1000
        assert all(0.1 <= health[name] <= 86400 for name in ("interval", "timeout", "within"))
