"""Policies are loaded, or refused with all that is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import PolicyError
from belljar.policy.limits import Tier
from belljar.policy.load import (
    examine,
    load_policy,
    load_preset,
    parse_policy,
    policy_of,
    resolve_policy,
)
from belljar.policy.loaded import MAX_FILE_BYTES, PRESETS, known_preset, with_tier
from belljar.policy.model import Policy
from belljar.units import printable

HEAD = "belljar: 1\nrisk: high\n"
LEAST = {"belljar": 1, "risk": "low"}
FIELDS = [
    *("belljar", "name", "risk", "tier", "image", "resources", "user", "workdir", "env", "files"),
    *("network", "cpus", "memory", "source", "stand_ins", "kind", "names", "ports", "upstreams"),
    *("record", "health", "sink", "a"),
]


def problems(text: str, base: Path | None = None) -> list[tuple[int, int, str, str]]:
    """(line, column, field, message) of everything wrong with the text."""
    return [
        (p.mark.line, p.mark.column, p.field, p.message)
        for p in examine(text.encode(), base=base).problems
    ]


@pytest.mark.promise("1.1")
@pytest.mark.parametrize(
    ("text", "field", "message"),
    [  # `^` stands before what is wrong
        ("^belljar: 1\n", "risk", "is missing"),
        ("belljar: ^2\nrisk: high\n", "belljar", "should be 1"),
        ("belljar: 1\nrisk:  ^hgih\n", "risk", "did you mean `high`?"),
        (HEAD + "tier: ^gvisor\n", "tier", "can only be raised"),
        (HEAD + "resources: {cpus: 2, lifetime: ^4}\n", "resources.lifetime", "from 10s"),
        (HEAD + "env:\n  ^1A: b\n", "env.1A", "not a valid name of a variable"),
        (HEAD + "files:\n  - ^source: a\n    tagret: b\n", "files[0].target", "is missing"),
        (
            HEAD + "network:\n  upstreams:\n    - ^host: a.example\n",
            *("network.upstreams[0].ports", "is missing"),
        ),
        ("^[1]\n", "", "expected a mapping of fields"),
    ],
)
def test_an_error_names_line_column_and_field_and_says_what_is_allowed(
    text: str, field: str, message: str
) -> None:
    """The first problem stands exactly where it is, in the author's words."""
    before = text.partition("^")[0].split("\n")
    found = problems(text.replace("^", ""))
    assert found[0][:3] == (len(before), len(before[-1]) + 1, field)
    assert message in found[0][3]


def files_policy(*sources: str) -> str:
    rows = (f"  - {{source: '{source}', target: t{n}}}\n" for n, source in enumerate(sources))
    return HEAD + "files:\n" + "".join(rows)


def test_files_are_bounded_and_below_the_policys_directory(tmp_path: Path) -> None:
    """Each is told at the source's place."""
    (base := tmp_path / "policy").mkdir()
    (tmp_path / "secret").write_text("s")
    (base / "link").symlink_to("../secret")
    (base / "fine").symlink_to("good")
    for name, size in {"good": 1, "huge": MAX_FILE_BYTES + 1}.items():
        (base / name).touch()
        os.truncate(base / name, size)
    wrong = {"absent": "no such file", "huge": "100 MiB", "link": "leads out"}
    found = problems(files_policy("good", "fine", *wrong), base=base)
    places = [(4 + n, f"files[{n}].source") for n in range(2, 2 + len(wrong))]
    assert [(line, field) for line, _, field, _ in found] == places
    for (*_, message), told in zip(found, wrong.values(), strict=True):
        assert told in message


def test_a_file_is_read_bounded_and_checked_again(tmp_path: Path) -> None:
    """It may have changed since the policy was loaded."""
    (tmp_path / "a").write_bytes(b"contents\0")
    loaded = parse_policy(files_policy("a").encode(), source="p", base=tmp_path)
    file = loaded.policy.files[0]
    assert loaded.read_file(file) == b"contents\0"
    os.truncate(tmp_path / "a", MAX_FILE_BYTES + 1)
    with pytest.raises(PolicyError, match="more than 100 MiB"):
        loaded.read_file(file)
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("/etc/hostname")
    with pytest.raises(PolicyError, match="leads out"):
        loaded.read_file(file)


WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers() | WORDS | st.sampled_from(["high", "http", "cell", "a.b"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6)


@pytest.mark.promise("1.1")
@given(st.binary(max_size=200), DOCUMENTS)
def test_any_bytes_load_or_are_refused(noise: bytes, document: dict[str, object]) -> None:
    """Never another error, and one that can be shown."""
    for data in (noise, json.dumps({**LEAST, **document}).encode()):
        told = ""
        try:
            parse_policy(data, source="p.yaml", base=None)
        except PolicyError as exc:
            told = str(exc)
        assert all(printable(line, max_chars=100_000) == line for line in told.splitlines())


@pytest.mark.promise("1.2")
@pytest.mark.parametrize(
    ("text", "asked", "told"),
    [
        ("risk: medium\n", "container", "which is `gvisor`"),
        ("risk: low\ntier: microvm\n", "gvisor", "than this policy demands, which is `microvm`"),
        ("risk: low\n", "vm", "no tier `vm`"),
    ],
)
def test_a_tier_asked_for_is_never_below_what_the_policy_demands(
    text: str, asked: str, told: str
) -> None:
    """By its risk or by its author's word."""
    loaded = parse_policy(f"belljar: 1\n{text}".encode(), source="mine", base=None)
    with pytest.raises(PolicyError, match=told) as refused:
        with_tier(loaded, asked)
    assert refused.value.hint


SECRETS = [
    "hunter2: hunter2\n", "user: hunter2\nrisk: hunter2\n", "network: {hunter2: hunter2}\n",
    "a: &hunter2 1\nb: *hunter2\n", "hunter2: 1\nhunter2: 2\n", "a: 'hunter2\n",
    "1: hunter2\nhunter2: hunter2: hunter2\n", "- belljar: 1\n- hunter2\n", "\x07",
]  # fmt: skip


@pytest.mark.promise("1.7")
@pytest.mark.parametrize("text", SECRETS)
def test_nothing_of_a_file_that_is_no_policy_is_shown(text: str, tmp_path: Path) -> None:
    """Whatever is wrong with it as one: a wrong name or a link may have led to a secret."""
    (tmp_path / "belljar.yaml").write_text(text)
    with pytest.raises(PolicyError) as refused:
        load_policy(tmp_path / "belljar.yaml")
    told = str(refused.value)
    assert "hunter2" not in told.replace(str(tmp_path), "")
    assert "\\x07" not in told
    assert f"{tmp_path / 'belljar.yaml'}:" in told


@pytest.mark.promise("1.7")
def test_a_policy_that_is_a_link_out_of_its_directory_is_refused(tmp_path: Path) -> None:
    """Also where it leads to a good one; a link beside it is followed."""
    (tmp_path / "elsewhere.yaml").write_text(HEAD)
    (task := tmp_path / "task").mkdir()
    (task / "real.yaml").write_text(HEAD)
    (task / "beside.yaml").symlink_to("real.yaml")
    assert load_policy(task / "beside.yaml").policy.name == "beside"
    (file := task / "out.yaml").symlink_to("../elsewhere.yaml")
    with pytest.raises(PolicyError) as refused:
        resolve_policy(str(file))
    assert refused.value.where == str(file)


def stated(policy: Any) -> dict[str, Any]:  # noqa: ANN401 - a policy, or what stands for it
    names = {*Policy.model_fields, "images", "host_tools_rule", "guard_rules"}
    return {name: getattr(policy, name) for name in names} | {"json": policy.to_json()}


@pytest.mark.promise("1.1")
@pytest.mark.parametrize("name", PRESETS)
def test_a_known_preset_says_what_its_text_says(name: str) -> None:
    """In every field and property, with another tier too; a changed copy is checked again."""
    known, read = known_preset(name), load_preset(name)
    assert known is not None
    assert (known.text, known.source) == (read.text, read.source)
    assert (known.base, known.data) == (None, None)
    for tier in (None, Tier.MICROVM):
        assert stated(with_tier(known, tier).policy) == stated(with_tier(read, tier).policy)
    assert policy_of(read.policy).policy == read.policy
    with pytest.raises(PolicyError):
        policy_of(read.policy.model_copy(update={"user": "no user\n"}))
