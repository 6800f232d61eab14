"""A policy's network as a whole: what is refused, and exactly where."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.policy.load import examine
from belljar.policy.network import Default, Network

SHOP = "shop: {kind: http, names: [shop.example], routes: [{path: /}]}"


def text(network: str, risk: str = "low") -> bytes:
    """A policy with this network, whose lines begin on line 4."""
    body = "".join(f"  {line}\n" for line in network.strip("\n").split("\n"))
    return f"belljar: 1\nrisk: {risk}\nnetwork:\n{body}".encode()


def problems(
    network: str, risk: str = "low", base: Path | None = None
) -> list[tuple[int, int, str, str]]:
    """What is wrong: line, column, field, message."""
    found = examine(text(network, risk), base=base).problems
    return [(item.mark.line, item.mark.column, item.field, item.message) for item in found]


def network_of(network: str, risk: str = "low") -> Network:
    """The network of a policy without a mistake."""
    policy, found = examine(text(network, risk), base=None)
    assert found == ()
    assert policy is not None
    assert policy.network is not None
    return policy.network


def test_what_is_not_written_is_refused_denied_and_small() -> None:
    """An empty network reaches nothing: unknown names don't exist, there is no sink and nothing
    real."""
    network = network_of("default: deny")
    assert (network.default, network.sink, network.stand_ins, network.upstreams) == (
        Default.DENY,
        False,
        {},
        (),
    )
    assert network.record.packets == 512 << 20


UPSTREAM = (
    "host: real.example, ports: [443], methods: [GET], budget: 1MiB, reason: only there is it"
    " current"
)


@pytest.mark.promise("2.7")
@pytest.mark.parametrize("risk", ["high", "critical"])
def test_a_real_upstream_is_refused_at_high_and_critical_risk(risk: str) -> None:
    """When the policy is read, at the place where it stands."""
    assert problems(f"upstreams:\n  - {{{UPSTREAM}}}", risk) == [
        (5, 5, "network.upstreams", f"risk `{risk}` reaches nothing real: use a stand-in")
    ]


@pytest.mark.parametrize(
    ("stand_ins", "field", "told"),
    [  # `^` stands before what is wrong
        ("{a: ^{names: [b]}}", "a.kind", "is missing. One of `http`"),
        ("{a: {kind: ^htp}}", "a.kind", "did you mean `http`?"),
        ("{a: {kind: ^[git]}}", "a.kind", "is not one of"),
        ("{a: ^{kind: git}}", "a.names", "is missing. Host names"),
        ("{_a: ^{kind: git}}", "_a", "letters"),
        ("{default: ^{kind: git}}", "default", "sample's own cell"),
        (
            "{a: {kind: cell, names: [b], ports: [1], awaits: [^c]}}",
            "a.awaits[0]",
            "not a target cell that is listed before",
        ),
        (
            "{a: {kind: cell, names: [b], ports: [1], command: [x], arguments: ^[y]}}",
            "a.arguments",
            "combined with `command`",
        ),
        (
            "{a: {kind: cell, names: [b], ports: [1], completes: true, health: ^{command: [x]}}}",
            "a.health",
            "combined with `completes: true`",
        ),
        ("^[a]", "", "a mapping"),
        (
            "{a: {kind: git, names: [b.example, ^B.example]}}",
            "a.names[1]",
            "`b.example` is already a name of `a`",
        ),
        (
            "{a: {kind: git, names: [b]}, c: {kind: smtp, names: [d, ^b]}}",
            "c.names[1]",
            "`b` is already a name of `a`",
        ),
        (
            "{a: {kind: git, names: [^'*.google.internal']}}",
            "a.names[0]",
            "`metadata.google.internal` is the name of a metadata service",
        ),
        ("{a: {kind: metadata}, b: {kind: ^metadata}}", "b.kind", "one metadata service"),
        ("{a: {kind: git, names: [b], ports: [80, ^80]}}", "a.ports[1]", "is listed twice"),
    ],
)
def test_a_mistake_is_told_where_it_stands(stand_ins: str, field: str, told: str) -> None:
    """Line, column and field of the author's file, whatever the kind."""
    network, column = f"stand_ins: {stand_ins}", len("  stand_ins: ") + stand_ins.index("^") + 1
    found = {item[2]: item for item in problems(network.replace("^", ""))}
    wrong = found[f"network.stand_ins.{field}".removesuffix(".")]
    assert wrong[:2] == (4, column)
    assert told in wrong[3]


@pytest.mark.promise("2.5")
def test_a_targets_tier_is_never_less_than_the_ranges() -> None:
    """Raised it may be."""
    cell = "stand_ins: {a: {kind: cell, names: [b], ports: [80], tier: %s}}"
    assert problems(cell % "gvisor", "high") == [
        (
            4,
            62,
            "network.stand_ins.a.tier",
            "tier `gvisor` is less than this range's, `microvm`; a tier can only be raised",
        )
    ]
    assert problems(cell % "microvm", "low") == []


def test_names_are_bounded_in_all() -> None:
    """250 patterns, those of upstreams with them: each has an address of its own in one net."""
    names = [", ".join(f"n{part}-{number}.example" for number in range(125)) for part in range(2)]
    body = "\n".join(f"  s{part}: {{kind: git, names: [{names[part]}]}}" for part in range(2))
    assert len(network_of(f"stand_ins:\n{body}").stand_ins) == 2
    more = f"stand_ins:\n{body}\n  more: {{kind: git, names: [one.example]}}"
    assert [item[3] for item in problems(more)] == ["251 names in all; at most 250 are allowed"]
    targets = "\n".join(
        f"  t{number}: {{kind: cell, names: [t{number}], ports: [80]}}" for number in range(17)
    )
    assert [item[2:] for item in problems(f"stand_ins:\n{targets}")] == [
        ("network.stand_ins.t16", "17 target cells; at most 16 are allowed")
    ]
    many = "\n".join(f"  s{number}: {{kind: git, names: [s{number}]}}" for number in range(65))
    assert [item[3] for item in problems(f"stand_ins:\n{many}")] == [
        "65 stand-ins; at most 64 are allowed"
    ]


def test_files_are_there_and_in_a_directory_of_their_own(tmp_path: Path) -> None:
    """Below the policy's directory, links included, and with nothing of the policy's own beside
    them."""
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
        (har % "shop/absent.har", "no such file"),
        (har % "out/passwd", "leads out"),
        (har % "shop", "not a regular file"),
        (git % "shop/a.har", "not a directory"),
        (git % "out", "leads out"),
    ]:
        ((line, _, field, message),) = problems(network, base=tmp_path)
        assert (line, field.rpartition(".")[0]) == (4, "network.stand_ins.a")
        assert told in message, network
    assert "no directory of its own" in problems(git % "shop", base=None)[0][3]
