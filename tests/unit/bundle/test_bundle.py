"""A bundle from a stranger: what is altered, added, linked or for another host is refused, and
nothing of it is written."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.images import put_image
from tests.unit.ledger.test_verification import link_away, put_pipe

import belljar.bundle
from belljar.bundle import (
    ABOUT,
    SIGNATURE,
    SUMS,
    BundleError,
    Contents,
    check_host,
    create_bundle,
    install_bundle,
    open_bundle,
    store_files,
    write_manifest,
)
from belljar.errors import HostError
from belljar.image.kernel import REQUIRED_MODULES, Kernel
from belljar.image.tools import Report
from belljar.ledger.keys import SigningKey, load_or_make_key
from belljar.model.weights import add_weights, find_weights, verify_weights


def silent(_line: str) -> None:
    """Reports to nobody."""


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_or_make_key(tmp_path / "signer")


@pytest.fixture(autouse=True)
def _any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """These bundles are for every host, but where a test asks, and have no kernel."""
    monkeypatch.setattr("belljar.bundle.check_host", lambda _about: None)
    monkeypatch.setattr("belljar.bundle.adopt_kernel", lambda *_: None)


ABOUT_IT: dict[str, Any] = {"v": 1, "created": "2026-11-26T12:00:00Z", "belljar": "1"}
ABOUT_IT |= {"arch": "amd64", "system": "bookworm", "python": "3.11", "size_bytes": 11}
ABOUT_IT |= {"kernel": "0" * 64, "images": [], "weights": []}


def written(path: Path, key: SigningKey, files: dict[str, bytes], **changes: object) -> Path:
    whole = {**files, ABOUT: json.dumps({**ABOUT_IT, **changes}).encode()}
    for name, content in whole.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in whole.items()}
    write_manifest(path, digests, key)
    return path


FILES = {"share/docs/a.md": b"first", "share/docs/b/c.md": b"second"}


@pytest.fixture
def bundle(tmp_path: Path, key: SigningKey) -> Path:
    return written(tmp_path / "bundle", key, FILES)


def check(bundle: Path, key: str | None) -> None:
    open_bundle(bundle, expected_key=key).verify(silent)


A, B = "share/docs/a.md", "share/docs/b"


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


FAULTS: dict[str, Callable[[Path], object]] = {
    "longer": lambda bundle: (bundle / A).write_bytes(b"first and more"),
    "altered": lambda bundle: (bundle / A).write_bytes(b"FIRST"),
    "missing": lambda bundle: (bundle / A).unlink(),
    "nobody signed it": lambda bundle: (bundle / B / "d.md").write_bytes(b""),
    "a link": lambda bundle: link_away(bundle / A),
    "a linked folder": lambda bundle: link_away(bundle / B),
    "a pipe": lambda bundle: put_pipe(bundle / A),
    "another manifest": lambda bundle: rewrite(bundle / SUMS, "a.md", "z.md"),
    "an empty manifest": lambda bundle: (bundle / SUMS).write_text(""),
    "other names": lambda bundle: rewrite(bundle / ABOUT, "amd64", "arm64"),
    "no signature": lambda bundle: (bundle / SIGNATURE).write_text(f"{'0' * 64} "),
}


@pytest.mark.promise("1.10")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bundle_with_a_fault_installs_nothing(
    fault: str, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """Each is one clear refusal, by `verify` and by `install`; the store has nothing of it."""
    FAULTS[fault](bundle)
    with pytest.raises(BundleError):
        check(bundle, key.fingerprint)
    home = tmp_path / "home"
    with pytest.raises(BundleError):
        install(bundle, home, key)
    assert not (home / "share").exists()
    assert not (home / "bundle.json").exists()


def install(
    bundle: Path, home: Path, key: SigningKey, *, allow_older: bool = False, report: Report = silent
) -> None:
    install_bundle(
        home,
        bundle,
        expected_key=key.fingerprint,
        packages=False,
        allow_older=allow_older,
        report=report,
    )


@pytest.mark.promise("1.10")
@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/passwd", "share/docs/../../x", "share/docs//x", "share/docs/.x"),
        *("-x", "a/", "a\n", ""),
    ],
)
def test_a_path_that_leaves_the_bundle_is_refused(path: str, bundle: Path, key: SigningKey) -> None:
    """Even in a manifest that the key has signed."""
    write_manifest(bundle, {ABOUT: "0" * 64, path: "0" * 64}, key)
    with pytest.raises(BundleError):
        open_bundle(bundle, expected_key=key.fingerprint)


def test_a_signature_of_another_kind_does_not_sign_a_bundle(bundle: Path, key: SigningKey) -> None:
    """The key also signs checkpoints of ledgers: those bytes alone are no signature here."""
    signature = key.sign((bundle / SUMS).read_bytes())
    (bundle / SIGNATURE).write_text(f"{key.public_key} {signature}\n")
    with pytest.raises(BundleError):
        open_bundle(bundle, expected_key=None)


def test_a_bundle_for_another_kind_of_host_is_refused() -> None:
    """The message names both."""
    with pytest.raises(HostError, match=r"9\.9"):
        check_host({**ABOUT_IT, "python": "9.9"})


def test_a_newer_bundle_replaces_an_older_one_and_not_the_reverse(
    bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """What the newer one no longer has is gone; the older one needs to be asked for."""
    home = tmp_path / "home"
    install(bundle, home, key)
    assert (home / "share/docs/b/c.md").read_bytes() == b"second"
    newer = written(
        tmp_path / "newer", key, {"share/docs/a.md": b"third"}, created="2026-11-27T00:00:00Z"
    )
    install(newer, home, key)
    assert (home / "share/docs/a.md").read_bytes() == b"third"
    assert not (home / "share/docs/b").exists()
    with pytest.raises(BundleError):
        install(bundle, home, key)
    install(bundle, home, key, allow_older=True)
    assert (home / "share/docs/a.md").read_bytes() == b"first"


@pytest.mark.promise("1.10")
def test_a_medium_that_changes_after_it_was_verified_is_caught(
    bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """What is installed is the copy that was hashed, not what is read a second time."""
    home, last = tmp_path / "home", [*FILES][-1]

    def report(line: str) -> None:
        if line.endswith(last):  # the other one is verified by now
            FAULTS["altered"](bundle)

    install(bundle, home, key, report=report)
    assert (bundle / "share/docs/a.md").read_bytes() == b"FIRST"
    assert (home / "share/docs/a.md").read_bytes() == b"first"


def test_everything_that_a_bundle_would_lack_is_named_and_none_is_made(tmp_path: Path) -> None:
    """Image, kernel, weights, documentation and lock file, in one message, and with them an image
    that was altered."""
    image = put_image(tmp_path / "home", "odd")
    image.rootfs.chmod(0o644)
    image.rootfs.write_bytes(image.rootfs.read_bytes().replace(b"hsqs", b"HSQS"))
    wanted = Contents(
        images=("tools:1", "odd"),
        packages=("zstd",),
        weights=("model.gguf",),
        lock=tmp_path / "none.lock",
        checkout=tmp_path / "nowhere",
    )
    out = tmp_path / "out"
    with pytest.raises(HostError) as raised:
        create_bundle(tmp_path / "home", out, wanted, report=silent)
    lacks = ("tools:1", "kernel", "model.gguf", "docs", "examples", "none.lock")
    for name in (*lacks, "not those of its digest"):
        assert name in raised.value.what
    assert not out.exists()


def test_an_interrupted_installation_leaves_no_half_and_can_be_repeated(
    bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    """An interrupt while files are copied leaves what was there before; the next call succeeds."""
    home = tmp_path / "home"

    def interrupt(line: str) -> None:
        if line.endswith("share/docs/b/c.md"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(bundle, home, key, report=interrupt)
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
    big = written(tmp_path / "big", key, {"share/docs/big": bytes(4 << 20)})
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", home], check=True)
    try:
        with pytest.raises(HostError):
            install(big, home, key)
        monkeypatch.setattr("belljar.bundle.need_space", lambda *_: None)
        with pytest.raises(HostError):
            install(big, home, key)
        assert not (home / "share").exists()
        assert list((home / "tmp").iterdir()) == []
    finally:
        subprocess.run(["umount", home], check=True)


def kernel_in(folder: Path) -> Kernel:
    folder.mkdir()
    (folder / "vmlinuz").write_bytes(b"")
    return Kernel(
        digest="0" * 64,
        version="1",
        package="p",
        vmlinuz=folder / "vmlinuz",
        modules=(),
        wanted=REQUIRED_MODULES,
    )


def test_weights_of_the_store_arrive_by_their_digest(
    key: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other store finds them by the digest that a model cell names, and others than those
    never. A file that git doesn't know is in no bundle."""
    source = tmp_path / "small-model"
    (source / "tokens").mkdir(parents=True)
    (source / "tokens/t.json").write_bytes(b"{}")
    (source / "w.gguf").write_bytes(b"weights")
    digest = add_weights(source, home=tmp_path / "home").digest
    for name in ("docs/a.md", "examples/b.md", "examples/notes", "lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "docs", "examples/b.md"], check=True)
    kernel = kernel_in(tmp_path / "boot")
    monkeypatch.setattr("belljar.bundle.current_kernel", lambda _home: kernel)
    wanted = Contents(
        images=(), packages=(), weights=(digest,), lock=tmp_path / "lock", checkout=tmp_path
    )
    paths, about = store_files(tmp_path / "home", wanted)
    files = {name: path.read_bytes() for name, path in paths.items()}
    assert "share/examples/b.md" in files
    assert "share/examples/notes" not in files
    assert [name for name in files if name.startswith(f"weights/{digest}/small-model")]
    other = tmp_path / "other"
    install(written(tmp_path / "b", key, {**FILES, **files}, **about), other, key)
    verify_weights(find_weights(digest, home=other))
    wrong = {name: content + b"!" for name, content in files.items()}
    install(written(tmp_path / "c", key, {**FILES, **wrong}, **about), tmp_path / "third", key)
    with pytest.raises(HostError):
        find_weights(digest, home=tmp_path / "third")


UNNAMED: dict[str, Callable[[Path], object]] = {
    "an index that apt prefers": lambda path: (path / "debian/Packages.xz").write_bytes(b"z"),
    "a link": lambda path: (path / "debian/InRelease").symlink_to("Packages"),
}


@pytest.mark.parametrize("added", [None, *UNNAMED])
def test_install_sh_takes_nothing_that_the_manifest_does_not_name(
    added: str | None, key: SigningKey, tmp_path: Path
) -> None:
    """`sha256sum -c` passes over such a file, and apt and pip would take it: it is refused before
    any program runs. Without one, exactly the wheels of the manifest are installed."""
    files = {
        "python/a.whl": b"a",
        "debian/Packages": b"",
        "debian/install.txt": b"",
        "key.txt": b"",
    }
    bundle, prefix, ran = tmp_path / "bundle", tmp_path / "prefix", tmp_path / "ran"
    script = Path(str(belljar.bundle.__file__)).with_name("install.sh").read_bytes()
    written(bundle, key, {**files, "install.sh": script})
    (tmp_path / "bin").mkdir()
    (prefix / "bin").mkdir(parents=True)
    for fake in ("bin/apt-get", "prefix/bin/python", "prefix/bin/belljar"):
        (tmp_path / fake).write_text(f'#!/bin/sh\necho {fake} "$@" >>"{ran}"\n')
        (tmp_path / fake).chmod(0o755)
    (tmp_path / "bin/id").write_text("#!/bin/sh\necho 0\n")
    (tmp_path / "bin/id").chmod(0o755)
    if added:
        UNNAMED[added](bundle)
    done = subprocess.run(
        ["sh", bundle / "install.sh", "--packages", prefix],
        env={
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "BELLJAR_HOME": str(tmp_path / "home"),
        },
        check=False,
    )
    if added:
        assert done.returncode == 4
        assert not ran.exists()
    else:
        assert done.returncode == 0
        (pip,) = (line for line in ran.read_text().splitlines() if " pip " in line)
        assert pip.endswith(f" ignore {bundle}/python/a.whl")
