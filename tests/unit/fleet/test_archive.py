"""Archives between machines: whole, and harmless whatever they hold."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from belljar.errors import LedgerError, PolicyError
from belljar.fleet import archive
from belljar.fleet.archive import check_log, pack, pack_task, unpack
from belljar.image.layers import LayerError


def tree(root: Path) -> dict[str, bytes]:
    """Every file's content."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_directory_arrives_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty, small, large and deep files, in pieces of any size; private to this user."""
    monkeypatch.setattr(archive, "PIECE_BYTES", 1000)
    run = tmp_path / "run"
    (run / "bodies" / "ab").mkdir(parents=True)
    for name, content in {"a": b"", "bodies/ab/c": os.urandom(5000), "ö" * 90: b"x" * 512}.items():
        (run / name).write_bytes(content)
    sent = tmp_path / "sent.tar"
    sent.write_bytes(b"".join(pack(run)))
    with sent.open("rb") as file:
        unpack(file, tmp_path / "there")
    assert tree(tmp_path / "there") == tree(run)
    assert all(not p.stat().st_mode & 0o077 for p in (tmp_path / "there").rglob("*") if p.is_file())
    assert (tmp_path / "there").stat().st_mode & 0o077 == 0
    with tarfile.open(sent) as known:  # anybody can open it
        assert len(known.getnames()) == 3


def test_a_link_in_a_run_directory_is_not_followed(tmp_path: Path) -> None:
    """It is an error, not another file's content."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to("/etc/hostname")
    with pytest.raises(LedgerError):
        list(pack(tmp_path / "run"))


@pytest.mark.parametrize(
    "kind", ["up", "absolute", "link", "hard", "device", "folder", "twice", "cut"]
)
def test_a_hostile_archive_is_refused(tmp_path: Path, kind: str) -> None:
    """Names that lead out, links, devices, a file twice, an archive that is cut: nothing outside
    of the new directory is touched."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo({"up": "../out", "absolute": "/tmp/out"}.get(kind, "in"))
        info.size = 1
        kinds = {
            "link": tarfile.SYMTYPE,
            "hard": tarfile.LNKTYPE,
            "device": tarfile.CHRTYPE,
            "folder": tarfile.DIRTYPE,
        }
        if kind in kinds:
            info.type, info.linkname, info.size = kinds[kind], "../out", 0
        for _ in range(1 + (kind == "twice")):
            tar.addfile(info, io.BytesIO(b"x"))
    content = made.getvalue()
    sent = tmp_path / "sent.tar"
    sent.write_bytes(content[:512] if kind == "cut" else content)
    (tmp_path / "inner").mkdir()
    with sent.open("rb") as file, pytest.raises((LayerError, FileExistsError)):
        unpack(file, tmp_path / "inner" / "there")
    assert not (tmp_path / "inner" / "out").exists()
    assert not (tmp_path / "out").exists()


def test_a_task_is_sent_without_secrets_and_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No `.env`, no repository, no link; too much is refused with the directory's name."""
    (tmp_path / ".git").mkdir()
    for name in (".env", "task.py", ".git/config"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("/etc/hostname")
    sent = tmp_path.parent / f"{tmp_path.name}.tar"
    sent.write_bytes(pack_task(tmp_path))
    with tarfile.open(sent) as known:
        assert known.getnames() == ["task.py"]
    monkeypatch.setattr(archive, "MAX_TASK_BYTES", 3)
    with pytest.raises(PolicyError):
        pack_task(tmp_path)


@pytest.mark.parametrize("bound", ["MAX_MEMBER_BYTES", "MAX_LOG_BYTES"])
@pytest.mark.parametrize("name", ["a.eval", "a.json"])
def test_a_log_that_expands_too_far_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bound: str
) -> None:
    """Each member and all together have a bound; a JSON log is read whole as it is."""
    path = tmp_path / name
    if name == "a.eval":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as log:
            log.writestr("header.json", bytes(1 << 20))
    else:
        path.write_bytes(bytes(1 << 20))
    check_log(path)
    monkeypatch.setattr(archive, bound, (1 << 20) - 1)
    with pytest.raises(LedgerError):
        check_log(path)


def test_inspects_own_logs_are_accepted(tmp_path: Path) -> None:
    """As Inspect writes them."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSpec, write_eval_log

    about = {"created": "2026-01-01T00:00:00+00:00", "task": "t", "model": "mockllm/model"}
    spec = EvalSpec(**about, dataset=EvalDataset(), config=EvalConfig())  # type: ignore[arg-type]
    for name in ("a.eval", "a.json"):
        write_eval_log(EvalLog(eval=spec), str(tmp_path / name))
        check_log(tmp_path / name)
    assert zipfile.is_zipfile(tmp_path / "a.eval")
