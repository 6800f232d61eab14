"""`belljar image`: listing, inspecting and removing, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.cli.main import run
from belljar.image.config import ImageConfig
from belljar.image.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with one image, as `BELLJAR_HOME`."""
    home = tmp_path / "store"
    monkeypatch.setenv("BELLJAR_HOME", str(home))
    home.mkdir()
    (home / "new").write_bytes(b"hsqs" + bytes(4092))
    config = ImageConfig(user="u\x1b[31m", env={"A": "b"})
    Store(home).add(
        home / "new", config, name="small", source="made\nhere", created="2024-01-01T00:00:00Z"
    )
    return Store(home)


def test_ls_lists_and_escapes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Each image is one line; nothing that an image says acts on the terminal."""
    assert run(["image", "ls"]) == 0
    shown = capsys.readouterr().out
    assert "small" in shown
    assert "made\\nhere" in shown
    assert run(["image", "ls", "--json"]) == 0
    assert [entry["names"] for entry in json.loads(capsys.readouterr().out)] == [["small"]]


def test_ls_in_a_pipe_is_one_whole_line_for_each_image(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many and long its names are: what a program reads is never cut or wrapped."""
    names = [f"registry.example/{'deep/' * 20}tool:{number}" for number in range(5)]
    for name in names:
        assert run(["image", "tag", "small", name]) == 0
    capsys.readouterr()
    assert run(["image", "ls"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "DIGEST", "SIZE", "CREATED", "SOURCE"]
    assert line.startswith(", ".join(sorted([*names, "small"])) + "  ")


def test_tag_gives_a_name_in_its_normal_form(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The image is then found by each way of writing it; what can't name an image is refused."""
    assert run(["image", "tag", "small", "docker.io/library/Other"]) == 4
    assert run(["image", "tag", "none", "other"]) == 3
    capsys.readouterr()
    assert run(["image", "tag", "small", "docker.io/library/other:latest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["names"] == ["other", "small"]
    assert (
        store.find("other:latest")
        == store.find("small:latest")
        == store.find("index.docker.io/library/other")
    )


def test_inspect_shows_and_verifies(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything of an image is shown, escaped; changed bytes are found with `--verify` and end
    with 3."""
    assert run(["image", "inspect", "small", "--verify"]) == 0
    shown = capsys.readouterr().out
    assert "u\\x1b[31m" in shown
    assert "\x1b" not in shown
    rootfs = store.find("small").rootfs
    rootfs.chmod(0o644)
    content = bytearray(rootfs.read_bytes())
    content[10] ^= 1
    rootfs.write_bytes(content)
    assert run(["image", "inspect", "small", "--verify"]) == 3
    assert "not those of its digest" in capsys.readouterr().err


def test_rm_removes_and_a_missing_image_ends_with_3(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rm` says what is gone; what isn't there is an error that names what is near."""
    assert run(["image", "inspect", "smal"]) == 3
    assert "did you mean small?" in capsys.readouterr().err
    assert run(["image", "rm", "small", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["image_removed"] is True
    assert run(["image", "rm", "small"]) == 3
    assert run(["image", "ls"]) == 0
    assert "No images" in capsys.readouterr().err


def test_bad_input_is_told_apart(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option is usage (2), a reference or recipe that can't be meant is the author's
    (4)."""
    assert run(["image", "import", "oci-archive:/none.tar", "--max-size", "8"]) == 2
    assert run(["image", "import", "busybox"]) == 4
    assert "docker-archive" in capsys.readouterr().err
    assert run(["image", "import", "oci-archive:/none.tar"]) == 4
    assert run(["image", "import", "oci-archive:/x.tar", "--name", "../x"]) == 4
    assert run(["image", "build", "arch"]) == 4
    assert "debian-dev" in capsys.readouterr().err


def test_the_default_image_is_only_replaced_by_force(store: Store) -> None:
    """A name is given as before; `default` is taken from another image by --force alone."""
    assert run(["image", "tag", "small", "default"]) == 0
    (store.home / "new").write_bytes(b"hsqs" + bytes(8188))
    store.add(store.home / "new", ImageConfig(), name="big", source="", created="")
    assert run(["image", "tag", "big", "other"]) == 0
    assert run(["image", "tag", "small", "other"]) == 0
    assert run(["image", "tag", "small", "default"]) == 0
    for name in ("default", "default:latest", "docker.io/library/default"):
        assert run(["image", "tag", "big", name]) == 4
    assert store.find("default").digest == store.find("small").digest
    assert run(["image", "tag", "big", "default", "--force"]) == 0
    assert store.find("default").digest == store.find("big").digest
