"""Variables in a Dockerfile's words."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.image.parser import DockerfileError
from belljar.image.variables import Expander

ENV = {"V": "a.b.c", "EMPTY": "", "P": "/usr/lib/x.tar.gz", "é": "e"}


def test_variables_are_filled_in_as_buildkit_does() -> None:
    """The forms of the Dockerfile reference that are not a shell's, too (see below)."""
    for word, value in {
        "$V${V}x$Vx": "a.b.ca.b.cx",
        "${V:?no}${EMPTY?no}": "a.b.c",
        '\\$V \'$V\' "$V" "\\$V" a\\b': "$V $V a.b.c $V ab",
        "\"a\\b\" 'a\\b' \\\\": "a\\b a\\b \\",
        "${NO:-$V} ${NO:-'x'} ${NO:-\"$V\"}": "a.b.c x a.b.c",
        "$ a$": "$ a$",
        "$é $1 $$": "e  ",
    }.items():
        assert Expander(env=ENV).expand(word) == value, word


WRONG = {
    "give it": ("${NO:?give it}",),
    "NO": ("${NO?}",),
    "EMPTY": ("${EMPTY:?}",),
    "operator": (
        *("${V-", "${}", "${V^^}", "${V/a/b}", "${V%.*}", "${V:=x}", "${A:-${B}}"),
        *("${NO:-a\\}b}", '"${V:-{}}"'),
    ),
    "quote": ("'a", '"a', "${NO:-'}'}"),
}


@pytest.mark.parametrize("says", WRONG)
def test_a_broken_or_missing_variable_is_an_error(says: str) -> None:
    """`:?` stops with its message."""
    for word in WRONG[says]:
        with pytest.raises(DockerfileError) as caught:
            Expander(env=ENV).expand(word)
        assert says in str(caught.value)


NAMES = st.sampled_from(["V", "EMPTY", "P", "NO"])
PARTS = st.text(alphabet="abc./x*?", max_size=4)
OPERATORS = st.sampled_from(["-", ":-", "+", ":+"])
FORMS = st.one_of(
    st.builds("${{{}}}".format, NAMES),
    st.builds("${{{}{}{}}}".format, NAMES, OPERATORS, PARTS),
    st.builds('"{}$V"'.format, st.text(alphabet="abc. ", max_size=3)),
    st.builds("'{}'".format, st.text(alphabet="abc. $", max_size=3)),
)


@given(st.lists(FORMS, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_shell_gives_the_same(forms: list[str]) -> None:
    """The forms that are bash's too have the value that bash gives them."""
    word = "".join(forms)
    done = subprocess.run(
        ["bash", "-fc", f"IFS=; printf %s {word}"],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **ENV},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Expander(env=ENV).expand(word) == done.stdout


@given(st.text(alphabet="${}VNO:-+?#%/\\'\"*. `é\n", max_size=60))
def test_any_word_is_filled_in_or_refused(word: str) -> None:
    """No hostile word gives another error."""
    expander = Expander(env=ENV)
    for expand in (expander.expand, expander.expand_document):
        with suppress(DockerfileError):
            expand(word)
