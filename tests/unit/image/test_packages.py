"""Packages on top of a base."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import PolicyError
from belljar.image.dockerfile import base_images
from belljar.image.packages import build_packages, dockerfile_for, show_directories
from belljar.image.parser import parse


def test_the_dockerfile_of_packages_ends_as_the_bases_user() -> None:
    """Packages are installed as root, and the image goes back to its base's user."""
    text = dockerfile_for(
        "tools:1", "user", ["jq"], ["requests==2.0"], {"index-url": ["https://index.example"]}
    )
    items = [(item.word, " ".join(item.values)) for item in parse(text)]
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


def index_of(directory: Path, link: str) -> Path:
    """A local index with a page of one project."""
    page = directory / "simple/tool/index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<html><a class="x" href="{link}#sha256=0">tool</a></html>')
    return directory / "simple"


@pytest.mark.parametrize(
    ("link", "names"),
    [
        ("tool-1.whl", ["simple"]),
        ("../../files%20x/tool-1.whl", ["files x", "simple"]),
        ("../../files%20x/nothing", ["simple"]),
        ("https://index.example/tool-1.whl", ["simple"]),
        ("../../none/tool-1.whl", ["simple"]),
    ],
)
def test_the_directories_that_an_index_names_are_shown(
    tmp_path: Path, link: str, names: list[str]
) -> None:
    """Those of its files, beside its own, as pip on this host reads them; no other."""
    (tmp_path / "files x").mkdir()
    index = index_of(tmp_path, link)
    options = {"extra-index-url": [f"file://{index}", "https://index.example"]}
    shown = show_directories(options, lambda _line: None)
    assert [path.name for path in shown] == names
    assert len(options["extra-index-url"]) == 2


def test_an_index_that_leads_too_far_is_left_out_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shows a home, what holds one, or a directory that shares nothing with the index."""
    home = tmp_path / "home/someone"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/files").symlink_to(home)
    reported: list[str] = []
    values = [
        "file://" + str(index_of(tmp_path / "a", "file:///etc/tool-1.whl")),
        "file://" + str(index_of(tmp_path / "b", f"file://{home}/tool-1.whl")),
        "file://" + str(index_of(tmp_path / "c", f"file://{home.parent}/tool-1.whl")),
        "file://" + str(index_of(tmp_path / "d", "../../../linked/files/tool-1.whl")),
        "file:///",
        f"file://{home}",
    ]
    options = {"extra-index-url": list(values)}
    assert show_directories(options, reported.append) == ()
    assert options == {"extra-index-url": []}
    assert len(reported) == len(values)
