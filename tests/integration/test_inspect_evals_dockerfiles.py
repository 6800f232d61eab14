"""Every Dockerfile of inspect_evals, where it is installed: parsed, and translated or refused."""

from __future__ import annotations

from tests.real_packages import inspect_evals

from belljar.image.dockerfile import DockerfileError, base_images, make_buildable
from belljar.image.stages import parse


def test_all_dockerfiles_are_read_and_nearly_all_are_translated() -> None:
    """Of the 143 files each is translated for buildah but the template that is no Dockerfile."""
    root = inspect_evals()
    files = sorted(
        path
        for path in root.rglob("*")
        if "dockerfile" in path.name.lower() and path.suffix not in {".py", ".pyc", ".md"}
    )
    assert len(files) == 143
    refused, translated = {}, list[str]()
    for path in files:
        try:
            translated.append(make_buildable(base_images(path.read_text(), {}), {}, {}).text)
        except DockerfileError as error:
            refused[str(path.relative_to(root))] = str(error)
    again = parse("".join(translated))  # in one process: each takes a moment to start
    assert len(again) == sum(text.count("\n") for text in translated)
    assert not [each for each in again if each.heredocs]
    assert set(refused) == {"agent_bench/Dockerfile.template.j2"}
