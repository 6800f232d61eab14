"""Every Dockerfile of inspect_evals, where it is installed: parsed, and built or refused by its
line."""

from __future__ import annotations

import re

from tests.real_packages import inspect_evals

from belljar.image.dockerfile import DockerfileError, base_images, make_buildable


def test_all_dockerfiles_are_read_and_nearly_all_are_translated() -> None:
    """Of the 143 files each is translated for buildah but the template that is no Dockerfile, whose
    refusal names the line; what buildah gets is read again with nothing left to translate."""
    root = inspect_evals()
    files = sorted(
        path
        for path in root.rglob("*")
        if "dockerfile" in path.name.lower() and path.suffix not in {".py", ".pyc", ".md"}
    )
    assert len(files) == 143
    refused = {}
    for path in files:
        try:
            made = make_buildable(base_images(path.read_text(), {}), {}, {})
            again = make_buildable(base_images(made.text, {}), {}, {})
            assert not again.files
        except DockerfileError as error:
            refused[str(path.relative_to(root))] = str(error)
    assert set(refused) == {"agent_bench/Dockerfile.template.j2"}
    assert all(re.match(r"line \d+: ", what) for what in refused.values())
