"""Where a cell's user is at home, as an image's hostile passwd says; how old a decoy is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.cell.decoys import file_time, home_of

PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app/:/bin/sh\nbad:x:7:7::/home/../etc:/bin/sh\n"


@pytest.mark.parametrize(
    ("user", "home"),
    [
        ("0", "/root"),
        ("root", "/root"),
        ("app", "/home/app"),
        ("1000:1000", "/home/app"),
        ("bad", "/"),
        ("9", "/"),
    ],
)
def test_a_home_is_that_of_the_user(user: str, home: str) -> None:
    """By name or number; one that leads elsewhere counts as none."""
    assert home_of(PASSWD, user) == home


@given(st.binary(max_size=400), st.sampled_from(["0", "root", "app", "1"]))
def test_whatever_a_passwd_says_a_home_is_an_absolute_path(passwd: bytes, user: str) -> None:
    """Without steps upwards, and printable."""
    home = home_of(passwd, user)
    assert home.startswith("/")
    assert ".." not in home.split("/")
    assert home.isprintable()


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("constant_s", [0, 1, 315_532_800])
def test_an_image_of_one_constant_time_has_decoys_of_that_time(constant_s: float) -> None:
    """Reproducible builds; an ordinary image is older than now, and a decoy older than it."""
    assert file_time(constant_s, 86_400) == constant_s
    assert file_time(1.7e9, 86_400) == 1.7e9 - 86_400
