"""The script that has a cell trust its range's authority, run by a shell in roots like those of
several distributions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from belljar.cell.task_data import BUNDLE, trust_script

OTHERS = "-----BEGIN CERTIFICATE-----\nothers\n-----END CERTIFICATE-----\n"


@pytest.fixture
def pem(tmp_path: Path) -> str:
    """A certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    argv = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout"
    )
    made = subprocess.run([*argv.split(), tmp_path / "key"], capture_output=True, check=True)
    return made.stdout.decode()


def run_in(root: Path, pem: str) -> str:
    """As in a cell, with every path below `root`; what it says of what it could not do."""
    script = trust_script()
    for top in ("/etc/", "/usr/", "/opt/"):
        script = script.replace(top, f"{root}{top}")
    done = subprocess.run(
        ["/bin/sh", "-c", script], input=pem, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def make(root: Path, *files: str) -> None:
    """Bundles with others' authorities in them, and directories, whose names end with a slash."""
    for name in files:
        (root / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (root / name.strip("/")).mkdir(exist_ok=True)
        else:
            (root / name.lstrip("/")).write_text(OTHERS)


@pytest.mark.promise("2.5")
@pytest.mark.parametrize(
    ("anchor", "bundle"),
    [
        ("/usr/local/share/ca-certificates/", BUNDLE),  # Debian
        (  # Red Hat
            "/etc/pki/ca-trust/source/anchors/",
            "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        ),
        ("/etc/pki/trust/anchors/", "/etc/ssl/ca-bundle.pem"),  # SUSE
    ],
)
def test_where_a_distribution_looks(anchor: str, bundle: str, tmp_path: Path, pem: str) -> None:
    """In its bundle beside the others, and where its own tools take authorities from; everywhere
    there is the one file that variables point to, and OpenSSL finds it in the directory alone."""
    root = tmp_path / "root"
    make(root, anchor, bundle)
    run_in(root, pem)
    for name in (bundle, BUNDLE):
        text = (root / name.lstrip("/")).read_text()
        assert pem.strip() in text
        assert OTHERS in text
    files = (root / anchor.strip("/")).iterdir()
    assert [path.read_text().strip() for path in files] == [pem.strip()]
    (tmp_path / "leaf").write_text(pem)
    directory = (root / BUNDLE.lstrip("/")).parent
    argv = "openssl verify -no-CAfile -no-CAstore -CApath".split()  # noqa: SIM905 - as it is typed
    done = subprocess.run([*argv, directory, tmp_path / "leaf"], capture_output=True, check=False)
    assert done.returncode == 0, done
