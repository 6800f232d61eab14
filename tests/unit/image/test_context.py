"""A build's context."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import PolicyError
from belljar.image import context as module
from belljar.image.context import Ignored, parse_ignore, read_ignore, take_context
from belljar.store.scratch import remove_tree

IGNORED = {  # rules: what they leave out, and what they keep
    "*.log": ("a.log", "d/a.log a.log2"),
    "**/*.log\n!keep.log": ("a.log d/e/a.log", "keep.log"),
    "node_modules/": ("node_modules node_modules/a/b", "src/node_modules"),
    "/a/?.txt": ("a/b.txt", "a/bb.txt b.txt"),
    "*\n!src": ("x y/z", "src src/a"),
    "# comment\n\n  [ab]c  ": ("ac bc", "cc #"),
    "a/../b": ("b", "a"),
    "a/**": ("a/b a/b/c", "a"),
    "a/**/b": ("a/b a/x/b a/x/y/b/c", "a/x b"),
}


@pytest.mark.promise("1.7")
@pytest.mark.parametrize("rules", IGNORED)
def test_dockerignore_says_what_is_left_out(rules: str) -> None:
    """Patterns mean what they mean to Docker; the last one that matches decides."""
    ignored, (left_out, kept) = parse_ignore(rules), IGNORED[rules]
    assert all(path in ignored for path in left_out.split())
    assert not any(path in ignored for path in kept.split())


@pytest.mark.promise("1.7")
def test_a_dockerfiles_own_ignore_file_counts_alone(tmp_path: Path) -> None:
    """As in Docker: without it, what an author left out would be in the cell."""
    (tmp_path / ".dockerignore").write_text("a")
    (tmp_path / "x.dockerignore").write_text("solution")
    own, plain = (read_ignore(tmp_path, tmp_path / name) for name in ("x", "Dockerfile"))
    assert ("solution" in own, "a" in own) == (True, False)
    assert ("solution" in plain, "a" in plain) == (False, True)


@given(st.text(alphabet="*?[]!\\/ab.#- ^\n", max_size=60))
def test_any_dockerignore_is_read(text: str) -> None:
    """No pattern but one with a backslash is an error, or takes long."""
    with suppress(PolicyError):
        assert ("a/b" in parse_ignore(text)) in {True, False}


def test_no_pattern_is_tried_without_end() -> None:
    """Patterns that would be tried in very many ways are decided; too many of them are refused."""
    for pattern in ("**/" * 12 + "x", "*a" * 40 + "*b", "a*/" * 30 + "**/" * 30 + "z"):
        assert "/".join(["a" * 50] * 60) not in parse_ignore(pattern)
    with pytest.raises(PolicyError):
        parse_ignore("a\n" * (module.MAX_RULES + 1))


@pytest.mark.promise("1.8")
def test_the_digest_follows_names_modes_and_contents(tmp_path: Path) -> None:
    """Not times, nor a file that is left out."""
    (tmp_path / "a").write_text("1")
    first = take_context(tmp_path, Ignored())
    os.utime(tmp_path / "a", (1, 1))
    (tmp_path / "out.log").write_text("x")
    ignored = parse_ignore("*.log")
    assert take_context(tmp_path, ignored) == first
    (tmp_path / "a").chmod(0o755)
    second = take_context(tmp_path, ignored)
    (tmp_path / "a").write_text("2")
    assert len({first, second, take_context(tmp_path, ignored)}) == 3


@pytest.mark.promise("1.7")
def test_links_are_copied_and_never_followed(tmp_path: Path) -> None:
    """A link that leads out stays a link: nothing outside of the context is read or copied."""
    (tmp_path / "secret").write_text("secret")
    context, copy = tmp_path / "context", tmp_path / "copy"
    (context / "sub").mkdir(parents=True)
    (context / "sub" / "file").write_text("x")
    (context / "link").symlink_to("../secret")
    (context / "folder").symlink_to("..")
    copy.mkdir()
    assert take_context(context, Ignored(), copy) == take_context(context, Ignored())
    assert (copy / "link").readlink() == Path("../secret")
    assert (copy / "folder").is_symlink()
    plain = [path for path in copy.rglob("*") if path.is_file() and not path.is_symlink()]
    assert plain == [copy / "sub/file"]


@pytest.mark.promise("1.7")
def test_a_context_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file is refused before it is copied, and a pipe is not waited for."""
    context, copy = tmp_path / "context", tmp_path / "copy"
    for directory in (context, copy):
        directory.mkdir()

    def is_refused() -> bool:
        with pytest.raises(PolicyError):
            take_context(context, Ignored(), copy)
        return list(copy.iterdir()) == []

    os.mkfifo(context / "pipe")
    assert is_refused()
    (context / "pipe").unlink()
    (context / "sparse").touch()
    os.truncate(context / "sparse", 1 << 40)
    assert is_refused()
    (context / "sparse").unlink()
    within = os.open(context, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=within)
        deeper = os.open("d", os.O_RDONLY, dir_fd=within)
        os.close(within)
        within = deeper
    os.close(within)
    with pytest.raises(PolicyError):
        take_context(context, Ignored())
    remove_tree(context)
    context.mkdir()
    for name in "abc":
        (context / name).write_bytes(b"x" * 100)
    for bound, most in {"MAX_BYTES": 250, "MAX_ENTRIES": 2}.items():
        with monkeypatch.context() as patch:
            patch.setattr(module, bound, most)
            with pytest.raises(PolicyError):
                take_context(context, Ignored())


@pytest.mark.promise("1.7")
def test_a_directory_that_was_a_link_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context that changes while it is copied is refused; nothing is written outside."""
    context, copy, outside = (tmp_path / name for name in ("context", "copy", "outside"))
    for directory in (context, copy, outside):
        directory.mkdir()

    def paths(*_: object) -> Iterator[Path]:
        place = context / "a"
        place.symlink_to(outside)
        yield place
        place.unlink()
        place.mkdir()
        (place / "file").write_text("x")
        yield place / "file"

    monkeypatch.setattr(module, "_paths", paths)
    with pytest.raises(PolicyError):
        take_context(context, Ignored(), copy)
    assert list(outside.iterdir()) == []
    monkeypatch.setattr(module, "_paths", lambda *_: iter([context / "gone"]))
    with pytest.raises(PolicyError, match="can't be read"):
        take_context(context, Ignored())
