"""The kinds of stand-in and their own fields."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from belljar.policy.stand_ins import MODELS, AnyStandIn, StandIn

ADAPTER: TypeAdapter[StandIn] = TypeAdapter(AnyStandIn)
LEAST: dict[str, dict[str, Any]] = {
    "http": {"routes": [{"path": "/"}]},
    "har": {"recording": "site/a.har"},
    "python": {"ports": [8000], "app": "shop.main:app", "files": "shop"},
    "cell": {"ports": [5432]},
    "pypi": {"packages": "wheels"},
    "npm": {"packages": "tarballs"},
    "debian": {"packages": "debs"},
    "git": {},
    "smtp": {},
    "metadata": {},
    "openai": {},
}
PORTS = {
    "smtp": ((25, "smtp"), (465, "smtps"), (587, "smtp")),
    "metadata": ((80, "http"),),
    "cell": ((5432, "tcp"),),
    "python": ((8000, "tcp"),),
}


def read(kind: str, **fields: Any) -> StandIn:  # noqa: ANN401 - JSON values
    """A stand-in of the kind with what it needs at least, and these fields."""
    return ADAPTER.validate_python({"kind": kind, "names": ["a.example"], **LEAST[kind], **fields})


@pytest.mark.parametrize("kind", MODELS)
def test_each_kind_needs_little_and_knows_its_ports(kind: str) -> None:
    """Each has a model, a shape and ports; every port a protocol that the kind speaks."""
    item = read(kind)
    assert type(item) is MODELS[kind]
    assert item.spoken_ports() == PORTS.get(kind, ((80, "http"), (443, "tls")))
    assert {protocol for _, protocol in item.spoken_ports()} <= set(item.protocols)
    assert not {"kind", "names", "ports"} & set(item.settings())
    assert None not in item.settings().values()


REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "http": [
        ({"ports": ["25/smtp"]}, "serves `http`, `tls`, not `smtp`"),
        ({"names": []}, "at least 1 item"),
        ({"routes": None}, "routes"),
        *(({"routes": wrong}, "routes") for wrong in (5, ["a"], "a/b.yaml")),
    ],
    "har": [({"any_host": True}, "any_host")],
    "python": [({"app": "shop"}, "is not an app")],
    "cell": [
        ({"directories": []}, "at least 1 item"),
        ({"health": {}}, "exactly one of `command`, `http`"),
        ({"health": {"http": "/"}}, "both `http` and `port`"),
        ({"health": {"http": "/", "port": 80, "interval": True}}, "such as `1h30m`"),
    ],
    "metadata": [({"cloud": "gcp"}, "cloud"), ({"dat": {}}, "dat")],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_kind_does_not_know_is_refused(kind: str) -> None:
    """With what is allowed."""
    for fields, told in REFUSED[kind]:
        with pytest.raises(ValidationError) as refused:
            read(kind, **fields)
        assert told in str(refused.value)
