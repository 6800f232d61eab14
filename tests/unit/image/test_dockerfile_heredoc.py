"""Here-documents of Dockerfiles."""

from __future__ import annotations

import json

import pytest

from belljar.image.config import ImageConfig
from belljar.image.dockerfile import Buildable, DockerfileError, base_images, make_buildable


def made_of(steps: str) -> Buildable:
    """What becomes of a file `FROM a` with these steps."""
    text = f"FROM a\n{steps}"
    return make_buildable(base_images(text, {}), {}, {"a": ImageConfig(env={"HOME": "/root"})})


def commands(made: Buildable) -> list[str]:
    """Its instructions but the first."""
    lines = made.text.splitlines()
    return lines[lines.index("FROM a AS stage-0") + 1 :]


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
    (line,) = commands(made_of(steps))
    assert json.loads(line.removeprefix("RUN ")) == ["/bin/sh", "-c", script]


def test_the_shell_is_the_stage_s() -> None:
    """One that `SHELL` names, one of an earlier stage, or the base image's."""
    shells = 'FROM a AS x\nSHELL ["bash", "-ec"]\nFROM x AS y\nRUN <<E\n1\nE\n'
    text = f"{shells}FROM b\nCOPY --from=y / /\nRUN <<E\n2\nE\n"
    zsh = ImageConfig(shell=("zsh", "-c"))  # noqa: S604 - an image's SHELL
    made = make_buildable(base_images(text, {}), {}, {"a": ImageConfig(), "b": zsh})
    scripts = [json.loads(line[4:]) for line in made.text.splitlines() if line.startswith("RUN")]
    assert scripts == [["bash", "-ec", "1\n"], ["zsh", "-c", "2\n"]]


def test_documents_are_copied_from_a_context_of_their_own() -> None:
    """Each under its name, beside the files of the context, with the instruction's options."""
    made = made_of("ADD --chown=1:1 a.txt <<B.txt <<'C' /x/\nb\nB.txt\n$c\nC\n")
    context = made.heredoc_context
    assert commands(made) == [
        'ADD --chown=1:1 ["a.txt", "/x/"]',
        f'COPY --chown=1:1 --from={context} ["2/B.txt", "/x/"]',
        f'COPY --chown=1:1 --from={context} ["2/C", "/x/"]',
    ]
    assert made.files == {"2/B.txt": "b\n", "2/C": "$c\n"}


def test_what_would_not_be_kept_exactly_is_refused() -> None:
    """No end, no plain name, variables to fill in, another source, no directory, no shell. What
    only looks like a document is none: a here-string, a quoted word and a shift stay."""
    for steps in (
        *("RUN <<EOF\n1\n EOF", "RUN <<EOF\n#!/bin/sh\nEOF", "COPY <<../../E /x\n1\n../../E"),
        *("COPY <<EOF /x\n$HOME\nEOF", "COPY --from=b <<EOF /x\n1\nEOF"),
        *("COPY <<A <<B /x\n1\nA\n2\nB", "COPY a <<EOF\n1\nEOF"),
        'SHELL ["a", 1]\nRUN <<EOF\n1\nEOF',
    ):
        with pytest.raises(DockerfileError):
            made_of(steps)
    for step in ("cat <<<EOF", "echo '<<EOF'", 'echo "a <<EOF b"', "echo $((1 << 2))"):
        assert commands(made_of(f"RUN {step}")) == [f"RUN {step}"]
