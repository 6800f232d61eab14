"""Packages on top of a base."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import PolicyError
from belljar.image.dockerfile import base_images, instructions
from belljar.image.packages import build_packages, dockerfile_for


def test_the_dockerfile_of_packages_ends_as_the_bases_user() -> None:
    """Packages are installed as root, and the image goes back to its base's user."""
    text = dockerfile_for(
        "tools:1", "user", ["jq"], ["requests==2.0"], {"index-url": ["https://index.example"]}
    )
    items = [(item.word, item.rest) for item in instructions(text)]
    assert base_images(text, {}).images == ("tools:1",)
    assert items[1] == ("USER", "root")
    assert items[-1] == ("USER", "user")
    assert any(
        "--index-url https://index.example" in rest and '"requests==2.0"' in rest
        for _, rest in items
    )


@pytest.mark.parametrize("word", ["jq; id", "-o=x", "a b", "$(id)", "a'b", "", "a\nb", "--pre"])
def test_what_is_no_package_reaches_no_shell(tmp_path: Path, word: str) -> None:
    """A word that is no package's name is refused before anything is built."""
    for apt, pip in (([word], []), ([], [word])):
        with pytest.raises(PolicyError):
            build_packages(tmp_path, "x", base="default", apt=apt, pip=pip)
    assert not list(tmp_path.iterdir())
