"""Names of package files and the order of versions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from belljar.network.stand_ins.pypi.names import PackageFile, is_prerelease, normal, parse_file_name, version_order

VERSIONS = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", "1!"]),
    st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts))),
    st.sampled_from(["", "a1", "b2", "rc1", "rc2"]),
    st.sampled_from(["", ".post1", ".post2"]),
    st.sampled_from(["", ".dev1", ".dev2"]),
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My_Pkg-1.0-py3-none-any.whl", PackageFile("my-pkg", "1.0", "py3-none-any")),
        ("a-1.0-1-cp311-cp311-manylinux_2_17_x86_64.whl", PackageFile("a", "1.0", "cp311-cp311-manylinux_2_17_x86_64")),
        ("a.b-1.0+local.1.tar.gz", PackageFile("a-b", "1.0+local.1")),
        ("zope-interface-5.zip", PackageFile("zope-interface", "5")),
    ],
)
def test_names_of_packages(name: str, said: PackageFile) -> None:
    """Wheels with and without a build tag, source archives, local versions."""
    assert parse_file_name(name) == said


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
    said = parse_file_name(start + end)
    assert said is None or ("/" not in start and normal(said.project) == said.project)


@given(st.from_regex(r"[a-z](_?[a-z0-9]){0,10}", fullmatch=True), VERSIONS)
@settings(deadline=None)
def test_agrees_with_packaging(name: str, version: str) -> None:
    """What the reference implementation reads out of a name, we read too."""
    wheel = parse_file_name(f"{name}-{version}-py3-none-any.whl")
    sdist = parse_file_name(f"{name}-{version}.tar.gz")
    project, parsed, _, _ = parse_wheel_filename(f"{name}-{version}-py3-none-any.whl")
    assert wheel is not None
    assert (wheel.project, Version(wheel.version)) == (project, parsed)
    assert sdist is not None
    assert (sdist.project, Version(sdist.version)) == parse_sdist_filename(f"{name}-{version}.tar.gz")


@given(VERSIONS, VERSIONS)
@settings(deadline=None, max_examples=400)
def test_order_is_pep_440s(one: str, other: str) -> None:
    """Two versions stand as the reference implementation has them, and pre-releases are known as such."""
    assert (version_order(one) < version_order(other)) == (Version(one) < Version(other))
    assert is_prerelease(one) == Version(one).is_prerelease


@given(st.lists(st.text(max_size=20) | VERSIONS, max_size=8))
@settings(deadline=None)
def test_anything_can_be_ordered(versions: list[str]) -> None:
    """A file's odd version doesn't break the index."""
    assert len(sorted(versions, key=version_order)) == len(versions)
