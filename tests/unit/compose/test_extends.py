"""What a service inherits from another of its file."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.compose.document import read_services
from belljar.compose.translate import read_compose
from belljar.compose.values import CannotKeepError


def made(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A service that extends another."""
    services = {"base": base, "web": {"extends": {"service": "base"}, **own}}
    return dict(read_services({"services": services})["web"])


def test_what_is_one_value_is_replaced() -> None:
    """A command is one, though it is a list; what the service doesn't say is the other's."""
    base = {"image": "a", "command": ["serve"], "user": "u"}
    assert made(base, {"image": "b", "command": ["run"], "user": None}) == {
        "image": "b",
        "command": ["run"],
        "user": "u",
    }


def test_mappings_are_merged_and_lists_appended() -> None:
    """Also where one service writes a list and the other a mapping."""
    base = {"environment": ["A=1", "B=2"], "volumes": ["/a"], "depends_on": ["db"]}
    own = {
        "environment": {"B": "3"},
        "volumes": ["/b", "/a"],
        "depends_on": {"x": {"condition": "service_healthy"}},
    }
    assert made(base, own) == {
        "environment": {"A": "1", "B": "3"},
        "volumes": ["/b", "/a"],
        "depends_on": {
            "db": {"condition": "service_started"},
            "x": {"condition": "service_healthy"},
        },
    }


@pytest.mark.parametrize("name", ["env_file", "labels", "depends_on"])
def test_a_variable_with_the_name_of_a_key_is_a_variable(name: str) -> None:
    """Its values are merged as those of other variables."""
    base, own = {"environment": {name: "a", "B": "b"}}, {"environment": {name: "c"}}
    assert made(base, own) == {"environment": {name: "c", "B": "b"}}


def test_a_chain_is_followed() -> None:
    """The base of a base counts too, whoever stands first in the file."""
    services = {
        "c": {"extends": "b"},
        "b": {"extends": "a", "user": "u"},
        "a": {"image": "i", "user": "root"},
    }
    assert read_services({"services": services})["c"] == {"image": "i", "user": "u"}
    found = read_compose({"services": {"c": {"x-default": True, **services["c"]}, **services}})
    assert found.network is not None


@pytest.mark.parametrize(
    "extends",
    [
        {"service": "base", "file": "../common.yaml"},
        {"file": "common.yaml"},
        "nobody",
        "web",
        {"service": None},
    ],
)
def test_what_is_not_in_the_file_is_refused(extends: Any) -> None:  # noqa: ANN401 - YAML
    """By the service's name and the key's; and so is a circle."""
    with pytest.raises(CannotKeepError) as caught:
        read_compose({"services": {"base": {"image": "a"}, "web": {"extends": extends}}})
    (fact,) = caught.value.differences
    assert (fact.where, fact.key) == ("service web", "extends")
