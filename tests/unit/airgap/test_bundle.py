"""A bundle from a stranger: what is altered, added, linked or for another host is refused, and
nothing of it is written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.airgap.create import Wanted, create_bundle, locked_for
from belljar.airgap.install import check_host, install_bundle, verify_bundle
from belljar.airgap.manifest import (
    MANIFEST,
    SIGNATURE,
    SUMS,
    BundleError,
    Item,
    Manifest,
    encode,
    parse,
    sign,
    sums,
)
from belljar.errors import HostError, PolicyError
from belljar.ledger.keys import SigningKey, load_or_make_key


def silent(_line: str) -> None:
    """Reports to nobody."""


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    """The signer's key."""
    return load_or_make_key(tmp_path / "signer")


@pytest.fixture(autouse=True)
def _any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """These bundles are for every host, but where a test asks."""
    monkeypatch.setattr("belljar.airgap.install.check_host", lambda _manifest: None)


def written(path: Path, key: SigningKey, files: dict[str, bytes], **changes: object) -> Path:
    """A bundle of these documents for this host."""
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    items = tuple(
        Item(
            kind="docs",
            name=name,
            path=name,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        for name, content in files.items()
    )
    manifest = Manifest(
        created="2026-11-26T12:00:00Z",
        belljar="1",
        arch="amd64",
        system="bookworm",
        python="3.11",
        items=items,
    )
    encoded = encode(replace(manifest, **changes))  # type: ignore[arg-type]
    (path / MANIFEST).write_bytes(encoded)
    (path / SIGNATURE).write_bytes(sign(encoded, key))
    (path / SUMS).write_bytes(sums(items, encoded))
    return path


FILES = {"docs/a.md": b"first", "docs/b/c.md": b"second"}


@pytest.fixture
def bundle(tmp_path: Path, key: SigningKey) -> Path:
    """A sound one."""
    return written(tmp_path / "bundle", key, FILES)


def test_a_sound_bundle_is_verified(bundle: Path, key: SigningKey) -> None:
    """By its own key and without one; not by another's."""
    found = verify_bundle(bundle, expected_key=key.fingerprint, report=silent)
    assert found.signer == key.fingerprint
    assert verify_bundle(bundle, expected_key=None, report=silent) == found
    with pytest.raises(BundleError):
        verify_bundle(bundle, expected_key="0" * 64, report=silent)


def truncate(bundle: Path) -> None:
    """A file is shorter."""
    (bundle / "docs/a.md").write_bytes(b"fir")


def lengthen(bundle: Path) -> None:
    """A file is longer."""
    (bundle / "docs/a.md").write_bytes(b"first and more")


def alter(bundle: Path) -> None:
    """A file of the same length is another."""
    (bundle / "docs/a.md").write_bytes(b"FIRST")


def remove(bundle: Path) -> None:
    """A file is missing."""
    (bundle / "docs/a.md").unlink()


def add(bundle: Path) -> None:
    """A file is there that nobody signed."""
    (bundle / "docs/b/d.md").write_bytes(b"")


def add_hidden(bundle: Path) -> None:
    """So is a directory."""
    (bundle / ".hidden").mkdir()


def link(bundle: Path) -> None:
    """A file is a link to the same bytes elsewhere."""
    (bundle / "docs/a.md").rename(bundle.parent / "a.md")
    (bundle / "docs/a.md").symlink_to(bundle.parent / "a.md")


def link_folder(bundle: Path) -> None:
    """A directory is one."""
    (bundle / "docs/b").rename(bundle.parent / "b")
    (bundle / "docs/b").symlink_to(bundle.parent / "b")


def pipe(bundle: Path) -> None:
    """A file is a pipe, on which a reader would wait."""
    (bundle / "docs/a.md").unlink()
    os.mkfifo(bundle / "docs/a.md")


def change_manifest(bundle: Path) -> None:
    """The manifest says something else."""
    text = (bundle / MANIFEST).read_text()
    (bundle / MANIFEST).write_text(text.replace("bookworm", "bullseye"))


def change_sums(bundle: Path) -> None:
    """The sums that people compare are others."""
    (bundle / SUMS).write_text("")


def garble_signature(bundle: Path) -> None:
    """The signature is no JSON."""
    (bundle / SIGNATURE).write_text('{"public_key": [')


FAULTS = (truncate, lengthen, alter, remove, add, add_hidden, link, link_folder, pipe)
FORGERIES = (change_manifest, change_sums, garble_signature)


@pytest.mark.parametrize("fault", [*FAULTS, *FORGERIES], ids=lambda fault: fault.__name__)
def test_a_bundle_with_a_fault_installs_nothing(
    fault: Callable[[Path], None], bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """Each is one clear refusal, by `verify` and by `install`; the store has nothing of it."""
    fault(bundle)
    with pytest.raises(BundleError):
        verify_bundle(bundle, expected_key=key.fingerprint, report=silent)
    home = tmp_path / "home"
    with pytest.raises(BundleError):
        install(bundle, home, key)
    assert not (home / "share").exists()
    assert not (home / "bundle.json").exists()


def install(bundle: Path, home: Path, key: SigningKey, *, allow_older: bool = False) -> None:
    """Only the store."""
    install_bundle(
        home,
        bundle,
        expected_key=key.fingerprint,
        packages=False,
        allow_older=allow_older,
        report=silent,
    )


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/passwd", "docs/../../x", "docs//x", ".x", "docs/.x", "-x", "docs/a\n", "", "a/"],
)
def test_a_path_that_leaves_the_bundle_is_refused(path: str, bundle: Path, key: SigningKey) -> None:
    """Even in a manifest that the key has signed."""
    document = json.loads((bundle / MANIFEST).read_text())
    document["items"][0]["path"] = path
    encoded = json.dumps(document).encode()
    with pytest.raises(BundleError):
        parse(encoded, sign(encoded, key), expected_key=key.fingerprint)


@pytest.mark.parametrize("twin", ["docs/a.md", "docs/A.md", "manifest.json", "sha256sums"])
def test_a_path_that_is_named_twice_is_refused(twin: str, bundle: Path, key: SigningKey) -> None:
    """Also when the two differ in case alone, or one is the bundle's own file."""
    document = json.loads((bundle / MANIFEST).read_text())
    document["items"].append({**document["items"][0], "path": twin})
    encoded = json.dumps(document).encode()
    with pytest.raises(BundleError):
        parse(encoded, sign(encoded, key), expected_key=key.fingerprint)


def test_a_signature_of_another_kind_does_not_sign_a_bundle(bundle: Path, key: SigningKey) -> None:
    """The key also signs checkpoints of ledgers: those bytes alone are no signature here."""
    encoded = (bundle / MANIFEST).read_bytes()
    bare = {"public_key": key.public_key, "signature": key.sign(encoded)}
    with pytest.raises(BundleError):
        parse(encoded, json.dumps(bare).encode(), expected_key=None)


@pytest.mark.parametrize("field", ["arch", "system", "python"])
def test_a_bundle_for_another_kind_of_host_is_refused(
    field: str, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """The message names both; nothing is installed."""
    other = written(tmp_path / "other", key, FILES, **{field: "9.9"})
    manifest = verify_bundle(other, expected_key=None, report=silent)
    with pytest.raises(HostError) as raised:
        check_host(manifest)
    assert "9.9" in raised.value.what


def test_a_newer_bundle_replaces_an_older_one_and_not_the_reverse(
    bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """What the newer one no longer has is gone; the older one needs to be asked for."""
    home = tmp_path / "home"
    install(bundle, home, key)
    assert (home / "share/docs/b/c.md").read_bytes() == b"second"
    newer = written(
        tmp_path / "newer", key, {"docs/a.md": b"third"}, created="2026-11-27T00:00:00Z"
    )
    install(newer, home, key)
    assert (home / "share/docs/a.md").read_bytes() == b"third"
    assert not (home / "share/docs/b").exists()
    with pytest.raises(BundleError):
        install(bundle, home, key)
    install(bundle, home, key, allow_older=True)
    assert (home / "share/docs/a.md").read_bytes() == b"first"


def test_a_medium_that_changes_after_it_was_verified_is_caught(
    bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """What is installed is the copy that was hashed, not what is read a second time."""
    home, seen = tmp_path / "home", list[str]()

    def report(line: str) -> None:
        seen.append(line)
        if line == "docs/a.md":  # verified by now: this is the copy
            alter(bundle)

    with pytest.raises(BundleError):
        install_bundle(
            home,
            bundle,
            expected_key=key.fingerprint,
            packages=False,
            allow_older=False,
            report=report,
        )
    assert "docs/a.md" in seen
    assert not (home / "share").exists()


def test_everything_that_a_bundle_would_lack_is_named_and_none_is_made(tmp_path: Path) -> None:
    """Image, kernel, weights, documentation and lock file, in one message."""
    wanted = Wanted(
        images=("tools:1",),
        packages=("zstd",),
        weights=(tmp_path / "model.gguf",),
        lock=tmp_path / "none.lock",
        checkout=tmp_path / "nowhere",
    )
    out = tmp_path / "out"
    with pytest.raises(HostError) as raised:
        create_bundle(tmp_path / "home", out, wanted, report=silent)
    for name in ("tools:1", "kernel", "model.gguf", "docs", "examples", "none.lock"):
        assert name in raised.value.what
    assert not out.exists()


def test_a_bundle_is_never_made_over_something(tmp_path: Path) -> None:
    """Not even over a dangling link."""
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PolicyError):
        create_bundle(
            tmp_path,
            tmp_path / "out",
            Wanted(images=(), packages=(), lock=tmp_path, checkout=tmp_path),
            report=silent,
        )


def test_an_interrupted_installation_leaves_no_half_and_can_be_repeated(
    bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """An interrupt while files are copied leaves what was there before; the next call succeeds."""
    home = tmp_path / "home"

    def interrupt(line: str) -> None:
        if line == "docs/b/c.md":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install_bundle(
            home,
            bundle,
            expected_key=key.fingerprint,
            packages=False,
            allow_older=False,
            report=interrupt,
        )
    assert not (home / "share").exists()
    assert list((home / "tmp").iterdir()) == []
    install(bundle, home, key)
    assert (home / "share/docs/b/c.md").read_bytes() == b"second"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_one_error_and_leaves_nothing(
    key: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is copied when the size says so; while copying, when others filled it."""
    big = written(tmp_path / "big", key, {"docs/big": bytes(4 << 20)})
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", home], check=True)
    try:
        with pytest.raises(HostError):
            install(big, home, key)
        monkeypatch.setattr("belljar.airgap.install.need_space", lambda *_: None)
        with pytest.raises(HostError):
            install(big, home, key)
        assert not (home / "share").exists()
        assert list((home / "tmp").iterdir()) == []
    finally:
        subprocess.run(["umount", home], check=True)


LOCK = """# A comment
one==1.0 ; python_full_version < '3.11.5' \\
    --hash=sha256:aa
one==2.0 ; python_full_version >= '3.11.5' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
# Another
two[extra]==3.0 ; sys_platform == 'linux' \\
    --hash=sha256:dd
three==4.0 ; sys_platform == 'win32' \\
    --hash=sha256:ee
"""


@pytest.mark.parametrize(
    ("python", "one"), [("3.11.2", ["one==1.0", "aa"]), ("3.11.7", ["one==2.0", "bb", "cc"])]
)
def test_the_lock_file_is_read_for_the_python_of_the_other_host(
    python: str, one: list[str]
) -> None:
    """Not for the one that makes the bundle; each entry keeps its hashes."""
    words = re.findall(r"[a-z\[\]]+==[0-9.]+|(?<=sha256:)\w+", locked_for(LOCK, python))
    assert words == [*one, "two[extra]==3.0", "dd"]


def test_a_lock_file_of_another_kind_is_refused() -> None:
    """A line that is no exact requirement is not passed over."""
    with pytest.raises(PolicyError):
        locked_for("-r other.txt \\\n    --hash=sha256:aa\n", "3.11.2")
