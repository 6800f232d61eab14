"""A policy's network: what is refused, and exactly where; and each kind of stand-in's own fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from belljar.policy.load import examine
from belljar.policy.stand_ins import AnyStandIn, StandIn


def problems(
    network: str, risk: str = "low", base: Path | None = None
) -> list[tuple[int, int, str, str]]:
    """What is wrong with a network whose lines begin on line 4: line, column, field, message."""
    body = "".join(f"  {line}\n" for line in network.strip("\n").split("\n"))
    text = f"belljar: 1\nrisk: {risk}\nnetwork:\n{body}".encode()
    found = examine(text, base=base).problems
    return [(item.mark.line, item.mark.column, item.field, item.message) for item in found]


@pytest.mark.promise("2.7")
def test_a_real_upstream_is_refused_at_high_risk() -> None:
    """When the policy is read, at the place where it stands."""
    real = "host: real.example, ports: [443], methods: [GET], budget: 1MiB, reason: it is current"
    assert problems(f"upstreams:\n  - {{{real}}}", "high") == [
        (5, 5, "network.upstreams", "risk `high` reaches nothing real: use a stand-in")
    ]


CELL = "a: {kind: cell, names: [b], ports: [1]"


@pytest.mark.parametrize(
    ("stand_ins", "field", "told"),
    [  # `^` stands before what is wrong
        ("a: ^{names: [b]}", "a.kind", "is not one of `http`"),
        ("a: {kind: ^htp}", "a.kind", "did you mean `http`?"),
        ("a: {kind: ^openapi}", "a.kind", "write the API's routes as `http`"),
        ("a: ^{kind: git}", "a.names", "is missing"),
        ("_a: ^{kind: git}", "_a", "letters"),
        ("default: ^{kind: git}", "default", "sample's own cell"),
        (CELL + ", awaits: [^c]}", "a.awaits[0]", "not a target cell that is listed before"),
        (CELL + ", command: [x], arguments: ^[y]}", "a.arguments", "combined with `command`"),
        (
            CELL + ", completes: true, health: ^{command: [x]}}",
            *("a.health", "combined with `completes: true`"),
        ),
        ("a: {kind: git, names: [b.i, ^B.i]}", "a.names[1]", "`b.i` is already a name of `a`"),
        (
            "a: {kind: git, names: [^'*.google.internal']}",
            *("a.names[0]", "is a metadata service's"),
        ),
        ("a: {kind: metadata}, b: {kind: ^metadata}", "b.kind", "one metadata service"),
        ("a: {kind: git, names: [b], ports: [80, ^80]}", "a.ports[1]", "is listed twice"),
    ],
)
def test_a_mistake_is_told_where_it_stands(stand_ins: str, field: str, told: str) -> None:
    """Line, column and field of the author's file, whatever the kind."""
    column = len("  stand_ins: {") + stand_ins.index("^") + 1
    found = {item[2]: item for item in problems(f"stand_ins: {{{stand_ins.replace('^', '')}}}")}
    wrong = found[f"network.stand_ins.{field}"]
    assert wrong[:2] == (4, column)
    assert told in wrong[3]
    assert problems("stand_ins: [a]")[0][1:3] == (14, "network.stand_ins")


@pytest.mark.promise("2.5")
def test_a_targets_tier_is_never_less_than_the_ranges() -> None:
    """Raised it may be."""
    cell = "stand_ins: {a: {kind: cell, names: [b], ports: [80], tier: %s}}"
    ((line, column, field, told),) = problems(cell % "gvisor", "high")
    assert (line, column, field) == (4, 62, "network.stand_ins.a.tier")
    assert "less than this range's, `microvm`; a tier can only be raised" in told
    assert problems(cell % "microvm", "low") == []


def test_names_are_bounded_in_all() -> None:
    """250 patterns, those of upstreams with them: each has an address of its own in one net."""

    def told(count: int, stand_in: str, more: str = "") -> list[str]:
        rows = "".join(f"\n  s{at}: {stand_in.format(at=at)}" for at in range(count))
        return [item[3] for item in problems(f"stand_ins:{rows}{more}")]

    names = ", ".join(f"n{number}-{{at}}.example" for number in range(125))
    most = f"{{{{kind: git, names: [{names}]}}}}"
    assert told(2, most) == []
    more = "\n  more: {kind: git, names: [one.example]}"
    assert told(2, most, more) == ["251 names; at most 250 are allowed"]
    target = "{{kind: cell, names: [t{at}], ports: [80]}}"
    assert told(17, target) == ["at most 16 target cells are allowed"]


def test_files_are_there_and_in_a_directory_of_their_own(tmp_path: Path) -> None:
    """Links included, and with nothing of the policy's own beside them."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/a.har").touch()
    (tmp_path / "a.har").touch()
    (tmp_path / "out").symlink_to("/etc")
    har = "stand_ins: {a: {kind: har, names: [b], recording: %s}}"
    git = "stand_ins: {a: {kind: git, names: [b], repositories: %s}}"
    assert problems(har % "shop/a.har", base=tmp_path) == []
    assert problems(git % "shop", base=tmp_path) == []
    for network, told in [
        (har % "a.har", "not in a directory of its own"),
        (har % "out/passwd", "leads out"),
        (git % "shop/a.har", "not a directory"),
    ]:
        ((line, _, field, message),) = problems(network, base=tmp_path)
        assert (line, field.rpartition(".")[0]) == (4, "network.stand_ins.a")
        assert told in message, network
    assert "no directory of its own" in problems(git % "shop", base=None)[0][3]


ADAPTER: TypeAdapter[StandIn] = TypeAdapter(AnyStandIn)
LEAST: dict[str, dict[str, Any]] = {
    "http": {"routes": [{"path": "/"}]},
    "har": {"recording": "site/a.har"},
    "python": {"ports": [8000], "app": "shop.main:app", "files": "shop"},
    "cell": {"ports": [5432]},
    "metadata": {},
}


def read(kind: str, **fields: Any) -> StandIn:  # noqa: ANN401 - JSON values
    return ADAPTER.validate_python({"kind": kind, "names": ["a.example"], **LEAST[kind], **fields})


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
