"""Which images a Dockerfile starts from."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.image.dockerfile import DockerfileError, base_images, make_buildable

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("FROM debian:12\nRUN true", ("debian:12",)),
        (
            "# a comment\nfrom --platform=linux/amd64 python:3.12 as base\nFROM base",
            ("python:3.12",),
        ),
        ("ARG TAG=12\nFROM debian:${TAG}", ("debian:12",)),
        ("ARG TAG\nFROM debian:${TAG:-11}\nFROM debian:$TAG", ("debian:11", "debian:")),
        (f"FROM python:3.12@{DIGEST}", (f"python:3.12@{DIGEST}",)),
        ("FROM scratch\nCOPY --from=busybox:1 /bin /bin\nCOPY --from=0 / /", ("busybox:1",)),
        (
            (
                "FROM a AS one\nFROM b\nCOPY --from=ONE x y\nRUN --mount=type=bind,from=c,target=/c"
                " true"
            ),
            ("a", "b", "c"),
        ),
        ("FROM \\\n  debian:12 \\\n  AS x\nRUN a \\\n# FROM comment\n b", ("debian:12",)),
        ("# escape=`\nFROM `\n debian:12", ("debian:12",)),
    ],
)
def test_the_images_of_a_dockerfile(text: str, images: tuple[str, ...]) -> None:
    """Every image that a file starts, copies or mounts from is found; stages, numbers and scratch
    are none."""
    assert base_images(text, {}).images == images


def test_an_argument_names_a_base() -> None:
    """An argument given to the build beats its default; a base without a name is refused."""
    assert base_images("ARG BASE=a\nFROM $BASE", {"BASE": "b"}).images == ("b",)
    with pytest.raises(DockerfileError):
        base_images("ARG BASE\nFROM $BASE", {})


def test_bases_behind_the_target_are_not_asked_for() -> None:
    """With a target, the stages after it need no base."""
    assert base_images("FROM a AS one\nFROM b AS two", {}, target="One").images == ("a",)


@pytest.mark.parametrize(
    "text", ["", "RUN true", "FROM", "FROM a b", "FROM a\nRUN <<EOF\nls\n", "FROM a AS b c"]
)
def test_what_can_not_be_built_is_refused(text: str) -> None:
    """A file without FROM, with a broken one or with a here-document without an end is an error
    before anything is built."""
    with pytest.raises(DockerfileError):
        base_images(text, {})


def test_each_from_names_the_image_that_was_found() -> None:
    """The file that buildah gets names images by their ids; stages and all other lines are as they
    were."""
    text = "ARG T=1\nFROM \\\n a:$T AS x\nRUN one\nFROM x\nCOPY --from=x . ."
    ids = {"a:1": "f" * 64}
    assert (
        make_buildable(text, base_images(text, {}), ids).text
        == f"ARG T=1\nFROM {'f' * 64} AS x\n\nRUN one\nFROM x\nCOPY --from=x . .\n"
    )


@given(st.text(alphabet="FROMfrom \\\n`#$={}:-+<>EOF\"'\0é", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """A hostile file gives bases or `DockerfileError`, and never another exception."""
    with suppress(DockerfileError):
        found = base_images(text, {})
        make_buildable(text, found, {})


def test_arguments_that_double_each_other_are_refused() -> None:
    """Each argument twice the one before would fill the memory: a value has a bound."""
    lines = [
        "ARG A0=xxxxxxxx",
        *(f"ARG A{n}=$A{n - 1}$A{n - 1}" for n in range(1, 18)),
        "FROM $A17",
    ]
    with pytest.raises(DockerfileError):
        base_images("\n".join(lines), {})
