"""What a COPY takes of a context where buildah lacks the flag."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Any

import pytest

from belljar.image.copies import CHMOD, Copy, check_names, prepare
from belljar.image.parser import DockerfileError

FILES = {"a/one.txt": 0o644, "a/run": 0o755, "a/deep/key.pem": 0o600, "b/two.txt": 0o664}


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A small context with a link."""
    root = tmp_path / "context"
    for name, mode in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
        (root / name).chmod(mode)
    (root / "a/link").symlink_to("/etc/passwd")
    (root / "out").symlink_to("/etc")
    return root


def taken(context: Path, *sources: str, **more: Any) -> dict[str, int]:  # noqa: ANN401 - fields
    """The files that are there afterwards, with their modes; links and directories by their kind."""
    fields = {"excludes": (), "has_parents": False, "chmod": "", "checksum": "", "is_add": False}
    copy = Copy(number=7, line=3, sources=sources, **{**fields, **more})
    prepare(copy, context, context.parent)
    found = {}
    for path in sorted((context.parent / "7/0").rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode):
            name = str(path.relative_to(context.parent / "7/0"))
            found[name] = -1 if path.is_symlink() else stat.S_IMODE(mode)
    return found


@pytest.mark.parametrize(
    ("text", "mode", "after"),
    [
        *(
            ("u=rwX,go=rX", 0o600, 0o644),
            ("u=rwX,go=rX", 0o711, 0o755),
            ("a+rX,go-w", 0o622, 0o644),
        ),
        *(("+x", 0o600, 0o711), ("g=u", 0o640, 0o660), ("o=", 0o777, 0o770)),
        *(("a=r", 0o777, 0o444), ("u+x-w", 0o600, 0o500)),
    ],
)
def test_a_symbolic_mode_is_chmods(context: Path, text: str, mode: int, after: int) -> None:
    """As chmod(1) with umask 022; X counts for what has any x."""
    assert CHMOD.fullmatch(text)
    (context / "b/two.txt").chmod(mode)
    found = taken(context, "b/two.txt", chmod=text)
    assert found == {"000000/two.txt": after}


@pytest.mark.parametrize("text", ["u", "rwx", "z+x", "u=rwx,", "99", "-R", "u+x;id"])
def test_what_is_no_mode_is_refused(text: str) -> None:
    """Before anything is built."""
    assert not CHMOD.fullmatch(text)


def test_modes_are_set_for_each_file(context: Path) -> None:
    """The context itself stays as it is."""
    found = taken(context, "a", chmod="u=rwX,go=rX")
    assert found == {
        "000000/d/deep/key.pem": 0o644,
        "000000/d/link": -1,
        "000000/d/one.txt": 0o644,
        "000000/d/run": 0o755,
    }
    assert stat.S_IMODE((context / "a/deep/key.pem").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("sources", "excludes", "names"),
    [
        (["a"], ["*.txt"], {"000000/d/deep/key.pem", "000000/d/link", "000000/d/run"}),
        (["."], ["**/*.pem", "a/link", "out"], {"a/one.txt", "a/run", "b/two.txt"}),
        (["."], ["*", "!b"], {"b/two.txt"}),
        (["a/*.txt", "b/two.txt"], ["two*"], {"000000/one.txt"}),
        (["[ab]"], ["deep", "link", "run"], {"000000/d/one.txt", "000001/d/two.txt"}),
        (["/../a/one.txt"], ["x"], {"000000/one.txt"}),
        (["a/one.txt"], ["*"], set()),
    ],
)
def test_excluded_files_are_left_out(
    context: Path, sources: list[str], excludes: list[str], names: set[str]
) -> None:
    """Patterns count from each source; of a file, its name."""
    found = set(taken(context, *sources, excludes=tuple(excludes)))
    assert found == {f"000000/d/{name}" if sources == ["."] else name for name in names}
    assert any((context.parent / "7/0").iterdir())


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["a/deep"], {"a/deep/key.pem"}),
        (["a/./deep/key.pem", "b/two.txt"], {"deep/key.pem", "b/two.txt"}),
        (["./*/*.txt"], {"a/one.txt", "b/two.txt"}),
        (["?/./*.txt"], {"one.txt", "two.txt"}),
        (["**/*.pem"], {"a/deep/key.pem"}),
        (["a/./."], {"deep/key.pem", "one.txt", "run", "link"}),
    ],
)
def test_parents_are_kept(context: Path, sources: list[str], names: set[str]) -> None:
    """From the context's root, or from behind `/./`."""
    assert set(taken(context, *sources, has_parents=True)) == {f"0/d/{name}" for name in names}


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("none", {"chmod": "a+X"}),
        ("none", {"has_parents": True}),
        ("out/passwd", {"chmod": "a+X"}),
        ("out", {"chmod": "a+X"}),
        ("a/link", {"chmod": "a+X"}),
        ("a/one.txt", {"checksum": "sha256:0", "is_add": True}),
        ("archive", {"chmod": "a+X", "is_add": True}),
    ],
)
def test_what_can_not_be_taken_is_refused(context: Path, source: str, more: dict[str, Any]) -> None:
    """What isn't there, a link that leads elsewhere, another checksum, what ADD would unpack."""
    (context / "archive").write_bytes(b"\x1f\x8b\x08" + bytes(20))
    with pytest.raises(DockerfileError, match=r"^line 3: "):
        taken(context, source, **more)


def test_the_file_of_a_checksum_is_taken(context: Path) -> None:
    """`ADD --checksum` of a file in the context."""
    checksum = f"sha256:{hashlib.sha256(b'b/two.txt').hexdigest()}"
    assert taken(context, "b/two.txt", checksum=checksum, is_add=True) == {"000000/two.txt": 0o664}


def test_a_name_that_buildah_would_take_as_a_pattern_is_refused(context: Path) -> None:
    """It looks for the matches of a pattern as for patterns: for `[xyz]/f` it would copy `x/f`. A
    directory's content is not looked for."""
    for name in ("app/[xyz]/f", "app/x/f"):
        (context / name).parent.mkdir(parents=True)
        (context / name).write_text(name)
    assert taken(context, "app/[[]xyz]/f") == {"000000/f": 0o644}
    assert (context.parent / "7/0/000000/f").read_text() == "app/[xyz]/f"
    for source in ("app/*", "app/?xyz?/f", "*/*x*z*/*"):
        with pytest.raises(DockerfileError, match=r"line 3: .*xyz"):
            check_names(3, context, source)
    for source in ("*", "app/[a-x]/*", "a/l*", "o*/passwd"):
        check_names(3, context, source)
    (context / "[f]").touch()
    with pytest.raises(DockerfileError, match="line 3"):
        taken(context, "[[]f]")
