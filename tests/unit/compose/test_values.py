"""The small words of a compose file."""

from __future__ import annotations

import shlex

import pytest
from inspect_ai.util._sandbox.docker.service import parse_duration

from belljar.compose.model import Healthcheck
from belljar.compose.values import MAX_COMMAND_CHARS, size, text, words
from belljar.policy.yaml_tree import number


def test_a_time_is_what_inspect_reads() -> None:
    """Go's notation; what is none is refused."""
    for written in ("1m30s", "200ms", "1.5h", "1h2m3s4ms", "30s500ms"):
        found = Healthcheck.model_validate({"interval": written}).interval
        assert found == pytest.approx(parse_duration(written).seconds)
    for none in ("5", "1 fortnight", "-1s", "s", "1" * 50 + "s", 10):
        with pytest.raises(ValueError, match="not a duration"):
            Healthcheck.model_validate({"interval": none})


def test_a_size_is_dockers() -> None:
    """A thousand is 1024."""
    assert [size(each) for each in ("1g", "512mb", "1.5k", 7, "2GiB", "1 t")] == [
        f"{bytes_}B" for bytes_ in (1 << 30, 512 << 20, 1536, 7, 2 << 30, 1 << 40)
    ]


WRITTEN = "0755 -0755 0x1F 08 1_000 1e3 1.50 -0.0 1e6 1e-5"
PRINTED = "493 -493 31 8 1000 1000 1.5 -0 1e+06 1e-05"
NUMBERS = dict(zip(WRITTEN.split(), PRINTED.split(), strict=True))


def test_numbers_are_dockers() -> None:
    """Read by the rules of Go's yaml.v3, and printed as Go does; what is none stays text."""
    found = {written: number(written) for written in NUMBERS}
    assert {written: text(each) for written, each in found.items() if each is not None} == NUMBERS
    for written in ("", "_1", "x", "0x", "1e", "1:30", "2024-01-01", "1.2.3"):
        assert number(written) is None


def test_a_command_is_split_at_blanks_outside_of_quotes() -> None:
    """What Compose or a shell would read otherwise is refused."""
    for command, split in (
        ("sh -c 'X=1; echo $X > /tmp/x'", ["sh", "-c", "X=1; echo $X > /tmp/x"]),
        ("a \"b;c\"';d'", ["a", "b;c;d"]),
        ("a '' \"\" b''", ["a", "", "", "b"]),
        ('a #b $c\n${d} e="f g"', ["a", "#b", "$c", "${d}", "e=f g"]),
        ("", []),
    ):
        assert words(command) == split
    for odd in ("(a)", "'a", 'a "', "a `b`", "a $(b)", "a\\", r'a "\$b"', "a; b", "a&&b", "a <b"):
        with pytest.raises(ValueError, match="no command is read"):
            words(odd)


@pytest.mark.parametrize("unit", ["a", "'a'"])
def test_a_command_is_bounded(unit: str) -> None:
    """As text and as a list."""
    longest = unit * (MAX_COMMAND_CHARS // len(unit))
    assert words(longest) == shlex.split(longest)
    for command in (longest + unit, [unit] * (MAX_COMMAND_CHARS // len(unit) + 1)):
        with pytest.raises(ValueError, match="a command of more than 65,536 characters"):
            words(command)
