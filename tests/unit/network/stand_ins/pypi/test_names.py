"""Names of package files."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.utils import canonicalize_name
from packaging.version import Version

from belljar.network.stand_ins.pypi import PackageFile, parse_file_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("My_Pkg-1.0-py3-none-any.whl", PackageFile("my-pkg", Version("1.0"), "py3-none-any")),
        (
            "a-1.0-1-cp311-cp311-manylinux_2_17_x86_64.whl",
            PackageFile("a", Version("1.0"), "cp311-cp311-manylinux_2_17_x86_64"),
        ),
        ("a.b-1.0+local.1.tar.gz", PackageFile("a-b", Version("1.0+local.1"))),
        ("zope-interface-5.zip", PackageFile("zope-interface", Version("5"))),
    ],
)
def test_names_of_packages(name: str, expected: PackageFile) -> None:
    """Wheels with and without a build tag, source archives, local versions."""
    assert parse_file_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a.whl",
        "a-1.0.txt",
        "../a-1.0.tar.gz",
        "a-1.0/b.tar.gz",
        "a-1.0-py3-none-any.whl\n",
        "-1.0.tar.gz",
        "a" * 300 + "-1.0.zip",
    ],
)
def test_what_is_no_package(name: str) -> None:
    """No path, no other ending, no line end."""
    assert parse_file_name(name) is None


@given(st.text(max_size=60), st.sampled_from(["", "-1.0-py3-none-any.whl", "-1.0.tar.gz"]))
@settings(deadline=None)
def test_any_name_is_parsed_or_not(start: str, end: str) -> None:
    """No name raises, and none that is taken can be a path."""
    found = parse_file_name(start + end)
    assert found is None or ("/" not in start and canonicalize_name(found.project) == found.project)
