"""What a Dockerfile starts from, and what buildah gets of it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.image.config import HealthCheck, ImageConfig, debian_arch
from belljar.image.dockerfile import Buildable, DockerfileError, base_images, make_buildable

DIGEST = "sha256:" + "0" * 64
ARCH = debian_arch()
BASE = ImageConfig(  # noqa: S604 - an image's SHELL
    env={"PATH": "/bin", "IN_BASE": "base"},
    user="user",
    workdir="/home",
    shell=("zsh", "-c"),
    healthcheck=HealthCheck(test=("CMD", "true"), start_interval_ns=7),
)


def made_of(text: str, args: dict[str, str] | None = None) -> Buildable:
    """What buildah gets, with an image `base` in the store."""
    return make_buildable(base_images(text, args or {}), {}, {"base": BASE})


def lines_of(steps: str, args: dict[str, str] | None = None) -> list[str]:
    lines = made_of(f"FROM base\n{steps}", args).text.splitlines()
    return lines[lines.index("FROM base AS stage-0") + 1 :]


@pytest.mark.promise("1.8")
@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("FROM debian:12\nRUN true", "debian:12"),
        (f"# x\nfrom --platform=linux/{ARCH} python:3.12 as base\nFROM base", "python:3.12"),
        ("ARG TAG=12\nFROM debian:${TAG}", "debian:12"),
        (f"FROM python:3.12@{DIGEST}", f"python:3.12@{DIGEST}"),
        ("FROM scratch\nCOPY --from=busybox:1 /bin /bin", "busybox:1"),
        ("FROM a AS one\nFROM b\nCOPY --from=ONE x y\nRUN --mount=from=c,target=/c true", "a b c"),
        ("FROM a\nFROM b\nCOPY --from=0 / /", "a b"),
        ("FROM \\\n  debian:12 \\\n  AS x\nRUN a \\\n# FROM comment\n b", "debian:12"),
        ("# syntax=x\n# escape=\\\nFROM a", "a"),
        (f"FROM a AS bin-{ARCH}\nFROM b AS bin-other\nFROM bin-${{TARGETARCH}}", "a"),
        ("FROM a\nFROM b\nRUN --security=insecure x\nFROM 0", "a"),
    ],
)
def test_the_images_of_a_dockerfile(text: str, images: str) -> None:
    """Of the target's stages; other stages are left out with their bases."""
    assert base_images(text, {}).images == tuple(images.split())
    assert base_images(f"{text}\nFROM more AS two", {}, target="Two").images == ("more",)


@pytest.mark.promise("1.8")
def test_each_from_names_the_image_that_was_found() -> None:
    """The file that buildah gets names images by their ids, and stages by a name of their own."""
    text = "ARG T=1\nFROM \\\n a:$T AS x\nRUN one\nFROM x\nCOPY --from=x . ."
    made = make_buildable(base_images(text, {}), {"a:1": "f" * 64}, {}).text
    assert f"FROM {'f' * 64} AS x-0\nRUN one\nFROM x-0 AS stage-1\nCOPY --from=x-0 . .\n" in made
    assert 'ARG T="1"\n' in made


@pytest.mark.parametrize(
    ("steps", "lines"),
    [
        ("RUN one \\\n\n# comment\n two", ["RUN one  two"]),
        ('COPY ["a b", "/$IN_BASE"]', ['COPY ["a b", "/$IN_BASE"]']),
        ("RUN --mount=ro x", ["RUN --mount=type=bind,target=/home,ro x"]),
        ("RUN --mount=src=a,dst=/b,rw x", ["RUN --mount=type=bind,target=/b,source=a,rw x"]),
        ("RUN --mount=type=ssh x", ["RUN x"]),
        ("RUN [ 1 = 1 ]", ['RUN ["zsh", "-c", "[ 1 = 1 ]"]']),
        (literal := r"""ENV A='${x%y}' B=\${x-y} C="it's \${x/y/}" D=${x:-${z}}""", [literal]),
        ("LABEL a=$x\nEXPOSE $x\nMAINTAINER x", []),
        ("CMD []\nENTRYPOINT []", ["CMD []", "ENTRYPOINT []"]),
    ],
)
def test_what_buildah_reads_is_left_as_it_is(steps: str, lines: list[str]) -> None:
    """Flags that it lacks, and those that change nothing here, are gone."""
    assert lines_of(steps) == lines


def test_a_command_in_words_is_the_shells() -> None:
    """buildah would give it to /bin/sh: `source` and `[[` of SHELL's bash would fail in the cell."""
    steps = 'CMD a "b"\nSHELL ["bash", "-c"]\nENTRYPOINT source x && \\\n y'
    command, _, entrypoint = lines_of(steps)
    assert command == r'CMD ["zsh", "-c", "a \"b\""]'
    assert entrypoint == 'ENTRYPOINT ["bash", "-c", "source x &&  y"]'


def test_volumes_are_of_the_result_alone() -> None:
    """buildah would discard what steps write there; a base's are the result's, too."""
    text = "FROM base AS x\nVOLUME /a base\nFROM x\nVOLUME /c/../d/\nRUN y\nFROM x"
    for target, volumes in (("", ("/v", "/a", "/base")), ("1", ("/v", "/a", "/base", "/d"))):
        found = base_images(text, {}, target=target)
        made = make_buildable(found, {}, {"base": replace(BASE, volumes=("/v",))})
        assert made.volumes == volumes
        assert "VOLUME" not in made.text


def test_a_work_directory_is_made_as_its_user() -> None:
    """With its new parents, before what may use it."""
    steps = "WORKDIR a\nUSER 7\nWORKDIR /b\nUSER root\nWORKDIR /c"
    context = made_of(f"FROM base\n{steps}").heredoc_context
    assert lines_of(steps) == [
        *(f'COPY --chown=user --from={context} ["empty", "a/"]', "WORKDIR a", "USER 7"),
        *(f'COPY --chown=7:7 --from={context} ["empty", "/b/"]', "WORKDIR /b", "USER root"),
        *(f'COPY --from={context} ["empty", "/c/"]', "WORKDIR /c"),
    ]


def test_a_user_that_can_not_be_an_owner_is_refused_by_the_line() -> None:
    """Its words would be flags of a copy."""
    found = base_images("FROM base\nWORKDIR /c", {})
    for user in ("a b", "a,b", '"a'):
        with pytest.raises(DockerfileError, match="line 2: "):
            make_buildable(found, {}, {"base": replace(BASE, user=user)})


REFUSED = {
    "RUN --security=insecure x": "--security=insecure",
    "RUN --mount=type=secret,id=tok,required=true x": "tok",
    "RUN --mount=type=bind,what=1,target=/x y": "what",
    "RUN --mount=type=bind,target=/ y": "target",
    "RUN --mount=type=bind,from=$IN_BASE,target=/a y": "$IN_BASE",
    "ADD --keep-git-dir=true a b": "--keep-git-dir",
    "VOLUME $A": "VOLUME",
    "COPY --exclude=*.pem a b": "--exclude",
    "COPY --chmod=u+x a b": "--chmod=u+x",
    'COPY ["a", "/${V%p}"]': "${V%p}",
    "ARG A=1 B='x'${V:?m}": "${V:?m}",
    'ENV A="it\'s ${V/a/b}"': "${V/a/b}",
    "COPY a/[[]b] c": "[[",
    'VOLUME ["/a\\nb"]': "VOLUME",
    "COPY /**/a b": "**",
    "COPY --from=$IN_BASE a b": "$IN_BASE",
    "SHELL bash -c": "SHELL",
    "ONBUILD RUN x": "ONBUILD",
    **{text: text.split()[0] for text in ("COPY a", "DANCE", "RUN")},
}


@pytest.mark.parametrize("steps", REFUSED)
def test_what_can_not_be_honoured_is_refused_by_its_line(steps: str) -> None:
    """Nothing is dropped in silence: the line and what is wrong with it are named."""
    with pytest.raises(DockerfileError) as caught:
        made_of(f"FROM base\n# comment\n{steps}")
    assert REFUSED[steps] in str(caught.value)
    assert str(caught.value).startswith("line 3:")


def test_what_can_not_be_built_is_refused() -> None:
    """Before anything is built; an argument does not become an instruction."""
    for text in (
        *("", "RUN true", "FROM", "FROM a b", "FROM a\nRUN <<EOF\nls\n", "FROM a AS b c"),
        *("FROM a AS 1x", "FROM --platform=plan9/mips a", "FROM --platform=mips a", "FROM 'a"),
        *("FROM a;b", "# escape=x\nFROM a", "FROM a\nRUN \0", "FROM \udc80"),
        *("# check=x\n# Escape = `\nFROM a", "FROM a\nRUN " + "x" * 65_536),
    ):
        with pytest.raises(DockerfileError):
            base_images(text, {})
    with pytest.raises(DockerfileError, match="line break"):
        made_of("ARG A\nFROM base", {"A": "1\nRUN x"})
    assert 'ARG A="\\"\\$x\\\\"\n' in made_of("ARG A\nFROM base", {"A": '"$x\\'}).text


WORDS = st.sampled_from(
    [
        *"$\\\"'{}:-+?#%/=,.`a[] \n\0é",
        *("COPY ", "ENV ", "ARG ", "RUN ", "FROM ", " AS ", "${A", "<<E", "\nE\n"),
        *("--mount=type=bind,target=", "--from=", "--chmod=", "--exclude="),
    ]
)


@pytest.mark.promise("1.8")
@given(st.lists(WORDS, max_size=40).map("".join))
@settings(max_examples=30)
def test_any_words_are_translated_or_refused(words: str) -> None:
    """No other exception; none of a hostile file's words becomes an instruction."""
    with suppress(DockerfileError):
        made_of(words)
    with suppress(DockerfileError):
        made = made_of(f"FROM base\n{words}\n")
        allowed = {"FROM", "ARG", "ENV", "COPY", "ADD", "RUN"}
        assert {line.split(" ")[0] for line in made.text.splitlines()} <= allowed
        assert not [line for line in made.text.splitlines() if line.endswith("\\")]


@pytest.mark.promise("1.8")
def test_what_would_take_without_end_is_refused() -> None:
    """A value has a bound; the parser, quadratic in places, has a process and a time."""
    begin = time.monotonic()
    with pytest.raises(DockerfileError):
        base_images("ONBUILD " * 7_000, {})
    assert time.monotonic() - begin < 20
    doubled = [f"ARG A{n}=$A{n - 1}$A{n - 1}" for n in range(1, 18)]
    with pytest.raises(DockerfileError):
        base_images("\n".join(["ARG A0=xxxxxxxx", *doubled, "FROM $A17"]), {})


@pytest.mark.parametrize(
    ("steps", "script"),
    [
        ("RUN <<EOF\necho $A\n# no comment\n\nEOF\n", "echo $A\n# no comment\n\n"),
        ("RUN <<-EOF\n\techo a\n\tEOF\n", "echo a\n"),
        ("RUN <<E cat > /x\n1\nE\n", "<<E cat > /x\n1\nE"),
        ("RUN cat <<A >a; cat <<'B' >b\n1\nA\n$2\nB\n", "cat <<A >a; cat <<'B' >b\n1\nA\n$2\nB"),
        ("RUN set -e; \\\n cat <<EOF\nFROM z\nEOF\n", "set -e;  cat <<EOF\nFROM z\nEOF"),
        ("RUN <<EOF\nEOF2\n EOF\nEOF\n", "EOF2\n EOF\n"),
    ],
)
def test_a_step_s_document_is_its_shell_s_script(steps: str, script: str) -> None:
    """The stage's shell gets the lines as BuildKit gives them to it, in one exec form."""
    (line,) = lines_of(steps)
    assert json.loads(line.removeprefix("RUN ")) == ["zsh", "-c", script]


def test_the_shell_is_the_stage_s() -> None:
    """One that `SHELL` names, one of an earlier stage, or the base image's."""
    shells = 'FROM a AS x\nSHELL ["bash", "-ec"]\nFROM x AS y\nRUN <<E\n1\nE\n'
    text = f"{shells}FROM b\nCOPY --from=y / /\nRUN <<E\n2\nE\n"
    zsh = ImageConfig(shell=("zsh", "-c"))  # noqa: S604 - an image's SHELL
    made = make_buildable(base_images(text, {}), {}, {"a": ImageConfig(), "b": zsh})
    scripts = [json.loads(line[4:]) for line in made.text.splitlines() if line.startswith("RUN")]
    assert scripts == [["bash", "-ec", "1\n"], ["zsh", "-c", "2\n"]]


def test_what_would_not_be_kept_exactly_is_refused() -> None:
    """A here-string, a quoted word and a shift are no documents, and stay."""
    for steps in (
        *("RUN <<EOF\n1\n EOF", "RUN <<EOF\n#!/bin/sh\nEOF", "COPY <<../../E /x\n1\n../../E"),
        *("COPY <<EOF /x\n$IN_BASE\nEOF", "COPY --from=b <<EOF /x\n1\nEOF"),
        *("COPY <<A <<B /x\n1\nA\n2\nB", "COPY a <<EOF\n1\nEOF"),
        'SHELL ["a", 1]\nRUN <<EOF\n1\nEOF',
    ):
        with pytest.raises(DockerfileError):
            lines_of(steps)
    for step in ("cat <<<EOF", "echo '<<EOF'", 'echo "a <<EOF b"', "echo $((1 << 2))"):
        assert lines_of(f"RUN {step}") == [f"RUN {step}"]
