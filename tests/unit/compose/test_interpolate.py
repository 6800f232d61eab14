"""The `$` in compose files: Compose's rules, a sample's metadata, and nothing of this host."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.interpolate import interpolate, literal
from belljar.compose.values import CannotKeepError
from belljar.differences import DifferenceKind
from belljar.harness.config import expanded

GIVEN = {"SAMPLE_METADATA_A": "one", "SAMPLE_METADATA_E": ""}


def put(text: str) -> str:
    """One value of a file, with its references replaced."""
    return str(interpolate({"a": text}, GIVEN).document["a"])


def in_policy(text: str) -> str:
    """What a text, written as a literal, means in a policy's `env`."""
    return expanded({"A": literal(text)}, {}, where="x")["A"]


FORMS = {
    "$SAMPLE_METADATA_A": "one",
    "x${SAMPLE_METADATA_A}y": "xoney",
    "${SAMPLE_METADATA_E}": "",
    "${SAMPLE_METADATA_A:-no}": "one",
    "${SAMPLE_METADATA_E:-yes}": "yes",
    "${SAMPLE_METADATA_E-no}": "",
    "${SAMPLE_METADATA_N-yes}": "yes",
    "${SAMPLE_METADATA_N:-}": "",
    "${SAMPLE_METADATA_A:?why}": "one",
    "${SAMPLE_METADATA_E?why}": "",
    "${PORT:-8000}": "8000",
    "$$HOME $${HOME} $$$$": "$HOME ${HOME} $$",
    "a$ $1 $- end$": "a$ $1 $- end$",
}


def test_composes_forms() -> None:
    """Values, defaults, and the dollar itself."""
    assert {written: put(written) for written in FORMS} == FORMS


def test_what_is_refused_by_name() -> None:
    """An empty flag would be a silent change; an environment of this host's would be a leak."""
    for written, named in {
        "${SAMPLE_METADATA_N}": "SAMPLE_METADATA_N, and it is not in this sample's metadata",
        "$SAMPLE_METADATA_N": "SAMPLE_METADATA_N",
        "${SAMPLE_METADATA_N:?it is needed}": "SAMPLE_METADATA_N.*: it is needed",
        "${SAMPLE_METADATA_E:?it is needed}": "it is needed",
        "${HOME}": "HOME, and this host's environment is never read",
        "$PATH": "PATH",
        "${HOME:?set it}": "HOME.*: set it",
        **dict.fromkeys(("${HOME/a/b}", "${1}", "${HOME", "${}"), "not read here"),
        **dict.fromkeys(("${A:+yes}", "${A:-${B}}", "${A:-$B}"), "not read here"),
    }.items():
        with pytest.raises(CannotKeepError, match=named) as caught:
            put(written)
        assert "not read here" in named or caught.value.hint


@pytest.mark.promise("1.5")
def test_this_hosts_environment_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for metadata, and not for a default; that a default was taken is said."""
    for name in ("PORT", "SAMPLE_METADATA_N"):
        monkeypatch.setenv(name, "secret")
    found = interpolate({"x": "${PORT:-8000} ${SAMPLE_METADATA_N:-none}"}, {})
    assert found.document == {"x": "8000 none"}
    (fact,) = found.differences
    assert (fact.kind, fact.key) == (DifferenceKind.CHANGED, "$PORT")


def test_what_shapes_a_cell() -> None:
    """Environment does not: it is another for each sample in the same cell."""
    service = {"image": "$SAMPLE_METADATA_A", "environment": {"FLAG": "$SAMPLE_METADATA_E"}}
    found = interpolate({"services": {"x": service}}, GIVEN)
    assert found.shaping == {"SAMPLE_METADATA_A"}


def test_before_a_sample_is_known() -> None:
    """What is missing from `environment` is empty there, of metadata alone; elsewhere it is
    refused."""
    file = {"services": {"x": {"environment": {"A": "$SAMPLE_METADATA_N"}}}}
    assert interpolate(file, {}, blanks=True).document["services"]["x"]["environment"] == {"A": ""}
    for service in ({"environment": ["A=$HOME"]}, {"image": "$SAMPLE_METADATA_N"}):
        with pytest.raises(CannotKeepError):
            interpolate({"services": {"x": service}}, {}, blanks=True)


def test_texts_that_grow_are_refused() -> None:
    """Metadata that is put in often is counted before it is there."""
    file = {"x": "$SAMPLE_METADATA_A" * 1000}
    with pytest.raises(
        CannotKeepError, match="references stand for more than 1,048,576 characters"
    ):
        interpolate(file, {"SAMPLE_METADATA_A": "x" * 2000})
    assert len(interpolate(file, {"SAMPLE_METADATA_A": "x" * 1000}).document["x"]) == 1_000_000


@given(st.text(), st.text())
def test_metadata_is_data(before: str, value: str) -> None:
    """A reference inside of it stays as it is, here and where a policy's `env` is expanded
    later."""
    variables = {"SAMPLE_METADATA_A": f"${{SAMPLE_METADATA_B}}{value}"}
    made = interpolate({"x": before.replace("$", "$$") + "$SAMPLE_METADATA_A"}, variables).document[
        "x"
    ]
    assert made == before + variables["SAMPLE_METADATA_A"]
    assert in_policy(made) == made


@given(
    st.lists(
        st.sampled_from(["$", "{", "}", "SAMPLE_METADATA_", "A", ":-", "é", "-"]), max_size=12
    ).map("".join)
)
def test_any_text_means_itself_in_a_policy(text: str) -> None:
    """Once it was written so."""
    assert in_policy(text) == text


@given(st.text(alphabet="$SAMPLE_METADATA_A{}:-?+x ", max_size=40))
def test_whatever_is_written(text: str) -> None:
    """It has a meaning or is refused; and means exactly it in a policy's `env`."""
    with suppress(CannotKeepError):
        made = put(text)
        assert in_policy(made) == made
