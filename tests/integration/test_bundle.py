"""From a bundle to a finished evaluation on a bare Debian without a network, and what that tries to
reach: nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.gapped import gapped, whole_machine
from tests.integration.test_air_gap import ROOT, ip, namespace, packets_of, received, run
from tests.real_packages import real_model

__all__ = ["namespace"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.vm,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a Debian root"),
]

CHECK = 'cd /bundle && echo "$1  SHA256SUMS" | sha256sum -c && sha256sum -c --quiet SHA256SUMS'
INSTALL = f"{CHECK} && sh install.sh"
TASK = "/var/lib/belljar/share/examples/escape_artist/task.py"
KNOWN = "var/lib/belljar/bundle.json"
AGAIN = ("sh", "/bundle/install.sh")
RUN = ("/opt/belljar/bin/belljar", "run", TASK, "--json")
MODEL = "/var/lib/belljar/share/examples/model_cell"
ASK = (*RUN[:2], f"{MODEL}/task.py", "--model", f"belljar/{MODEL}/model.yaml", "--json")
BANK = "/var/lib/belljar/share/examples/bank_documents"
CASE = (
    *RUN[:2],
    f"{BANK}/bank.py@in_cell",
    "--model",
    f"belljar/{BANK}/model.yaml",
    "--limit",
    "1",
)


# Without the packages that only a bare Debian needs: of Python's, Inspect alone, which is looked into.
CREATE = """
import sys
from dataclasses import replace
from pathlib import Path
from belljar import bundle
from belljar.cli import main

def create(home, out, wanted, made=bundle.create_bundle, lock=Path(sys.argv.pop(1)), **more):
    return made(home, out, replace(wanted, lock=lock, packages=("mount",), newer=()), **more)

bundle.create_bundle = create
main.main()
"""


@pytest.fixture(scope="module")
def made(
    vm_home: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """A bundle of this test's store, as `create` reports it, where an interrupted call has left a
    file. When thorough, it is with all packages and the example's model."""
    out = tmp_path_factory.mktemp("bundle") / "bundle"
    command = [sys.executable, "-m", "belljar", "bundle", "create", str(out)]
    kept = out.with_name(f".{out.name}.part") / "share/docs/air-gap.md"
    kept.parent.mkdir(parents=True)
    if request.config.getoption("thorough"):
        real_model(vm_home)
        command += ["--model", str(ROOT / "examples/model_cell/model.yaml")]
    else:
        packages = re.split(
            r"^(?=\S)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE
        )
        lock = out.with_name("requirements.lock")
        lock.write_text("".join(each for each in packages if each.startswith("inspect-ai==")))
        command = [sys.executable, "-c", CREATE, str(lock), *command[3:]]
    kept.write_bytes(b"left")
    done = run(*command, "--json", home=vm_home, timeout_s=1800)
    assert done.returncode == 0, done.stderr
    about: dict[str, Any] = json.loads(done.stdout)
    return about


@pytest.mark.promise("1.10")
def test_from_a_bundle_to_a_finished_run_without_a_network(
    made: dict[str, Any], tmp_path: Path
) -> None:
    """With loopback alone, by the store of the bundle alone, a sample of the example is contained.
    What an interrupted call had left is made anew."""
    bundle, home = Path(made["path"]), tmp_path / "home"
    assert b"bundle create" in (bundle / "share/docs/air-gap.md").read_bytes()
    checked = run(
        "sh", "-c", CHECK.replace("/bundle", str(bundle)), "sh", made["digest"], home=home
    )
    assert checked.returncode == 0, checked.stderr
    install = ["bundle", "install", "--no-packages", "--key", made["key"], str(bundle)]
    task = ["run", str(home / "share/examples/escape_artist/task.py"), "--json", "--limit", "1"]
    done = run(*gapped(*whole_machine(*install, "then", *task)), home=home)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert (found["verdict"], len(found["samples"])) == ("contained", 1)


@pytest.mark.thorough
def test_a_full_disk_is_told_before_anything_is_gathered(vm_home: Path, tmp_path: Path) -> None:
    """With the size that is needed, and no bundle."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], check=True)
    try:
        out = tmp_path / "bundle"
        done = run(sys.executable, "-m", "belljar", "bundle", "create", str(out), home=vm_home)
        assert done.returncode == 3
        assert "MiB" in done.stderr
        assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, made: dict[str, Any]) -> Iterator[Path]:
    """A Debian with apt, after the sums and install.sh, which had no interface that was up."""
    folder = tmp_path_factory.mktemp("bare") / "root"
    command = ["mmdebstrap", "--quiet", "--variant=apt", "--mode=root"]
    subprocess.run([*command, "bookworm", folder], stdout=subprocess.DEVNULL, check=True)
    done = in_root(folder, made["path"], "sh", "-c", INSTALL, "sh", made["digest"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / KNOWN).exists()
    yield folder
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)


def in_root(
    root: Path, bundle: str, *command: str, inside: str = ""
) -> subprocess.CompletedProcess[str]:
    """A command there, in the network namespace of a file, or in one with no interface up."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc"]
    apart += [] if inside else ["--net"]
    helper = [sys.executable, "-m", "tests.integration.bare_root", str(root), bundle]
    return run(*apart, *helper, *command, home=root, inside=inside, timeout_s=1800)


def alone(namespace: Callable[[], str]) -> str:
    inside = namespace()
    ip("-n", inside, "link", "set", "lo", "up")
    return inside


def counted(namespace: Callable[[], str]) -> tuple[str, str]:
    """A namespace with a way out, and the one it leads to, on which somebody counts."""
    watched, outside = namespace(), namespace()
    ip("-n", watched, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", outside)
    for place, device in ((watched, "v0"), (outside, "v1")):
        ip("-n", place, "link", "set", device, "addrgenmode", "none")
        ip("-n", place, "link", "set", "lo", "up")
        ip("-n", place, "link", "set", device, "up")
    ip("-n", watched, "addr", "add", "192.0.2.9/24", "dev", "v0")
    ip("-n", watched, "route", "add", "default", "via", "192.0.2.1")
    return watched, outside


@pytest.mark.thorough
def test_a_model_cell_runs_from_a_bundle(
    root: Path, made: dict[str, Any], namespace: Callable[[], str]
) -> None:
    """The example's model, whose image and weights the bundle carries, answers without a network."""
    asked = in_root(root, made["path"], *ASK, inside=alone(namespace))
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert json.loads(asked.stdout)["verdict"] == "contained"


@pytest.mark.promise("1.10")
@pytest.mark.thorough
@pytest.mark.parametrize("command", [AGAIN, RUN, (*CASE, "--json")], ids=["again", "run", "bank"])
def test_nothing_uses_a_way_out(
    command: tuple[str, ...], root: Path, made: dict[str, Any], namespace: Callable[[], str]
) -> None:
    """install.sh over the installation, the whole example and a bank case, each with a way out on
    which somebody counts: no packet. A look-up then sends one, so the count can fail."""
    watched, outside = counted(namespace)
    (root / "etc/resolv.conf").write_text("nameserver 192.0.2.1\n")
    with packets_of(outside) as sock:
        done = in_root(root, made["path"], *command, inside=watched)
        assert done.returncode == 0, done.stdout + done.stderr
        assert received(sock) == []
        look_up = "import socket; socket.gethostbyname('a.example')"
        in_root(root, made["path"], "/opt/belljar/bin/python", "-c", look_up, inside=watched)
        assert received(sock) != []
    if command != AGAIN:
        found = json.loads(done.stdout)
        assert found["verdict"] == "contained"
        assert len(found["samples"]) >= (12 if command == RUN else 1)
        # The example's own model provider is none that is known to stay, so it counts as leaving
        assert command == RUN or found["left_this_host"]["claim"] == "nothing"


@pytest.mark.promise("1.10")
@pytest.mark.thorough
@pytest.mark.parametrize("change", [{"signer": "0" * 64}, {"created": "2999-01-01T00:00:00Z"}])
def test_install_sh_over_an_installation_checks_signer_and_age_first(
    change: dict[str, str], root: Path, made: dict[str, Any]
) -> None:
    """A bundle of another signer, or an older one, is refused before a package is installed."""
    known, packages = root / KNOWN, root / "var/lib/dpkg/status"
    before, state = known.read_text(), packages.stat().st_mtime_ns
    known.write_text(json.dumps({**json.loads(before), **change}))
    try:
        done = in_root(root, made["path"], *AGAIN)
    finally:
        known.write_text(before)
    assert done.returncode == 4, done.stdout + done.stderr
    assert packages.stat().st_mtime_ns == state
