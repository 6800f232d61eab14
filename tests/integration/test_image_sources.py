"""Images from registries, daemons and archives, by real skopeo: their names, their digests, and
what goes wrong with each."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.images import docker_archive, entry, layer, oci_archive, sha256
from tests.fakes.registry import Registry, docker, registry

from belljar.cli.main import run
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.image.oci import ImportLimits, import_image
from belljar.image.store import Store

LAYER = layer(entry("bin/sh", b"#!"), entry("etc/issue", b"x" * 100_000))
OTHER = layer(entry("bin/sh", b"another"))
HASTY = ImportLimits(timeout_s=30, answer_s=1, stall_s=1)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """An empty store; whatever happens in it, no scratch is left."""
    made = tmp_path / "store"
    yield made
    assert not list((made / "tmp").iterdir()) if (made / "tmp").exists() else True


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as made:
        yield made


@pytest.mark.promise("1.8")
@pytest.mark.parametrize("is_docker", [False, True])
def test_an_image_of_a_registry_is_found_by_every_digest_it_has(
    is_docker: bool, served: Registry, home: Path
) -> None:
    """By tag, by the digests of its index and manifest, and by its id; each was checked."""
    top, manifest, config = served.put(
        "team/tool", "1", [LAYER], is_index=not is_docker, is_docker=is_docker
    )
    name = f"{served.address}/team/tool"
    image = import_image(home, f"docker://{name}:1")
    assert image.names == (f"{name}:1",)
    assert set(image.origins) == {top, manifest, config}
    pins = (f"{name}@{top}", f"{name}:1@{manifest}", f"{name}:other@{top}", config)
    for ref in (f"{name}:1", *pins):
        assert Store(home).find(ref).digest == image.digest
    with pytest.raises(HostError, match=f"belljar image import docker://{name}@{sha256(b'?')}"):
        Store(home).find(f"{name}:1@{sha256(b'?')}")


@pytest.mark.promise("1.8")
def test_a_digest_chooses_what_a_tag_no_longer_names(served: Registry, home: Path) -> None:
    """A registry is asked for the digest, whatever the tag beside it names today."""
    name = f"{served.address}/tool"
    pinned, _, _ = served.put("tool", "1", [LAYER])
    served.put("tool", "1", [OTHER])
    image = import_image(home, f"docker://{name}:1@{pinned}")
    assert image.names == (f"{name}@{pinned}",)
    assert import_image(home, f"docker://{name}:1").digest != image.digest
    assert Store(home).find(f"{name}:1@{pinned}").digest == image.digest


@pytest.mark.promise("1.8")
def test_a_registry_that_gives_something_else_is_refused(served: Registry, home: Path) -> None:
    """By the digest of the bytes that came; an unknown tag or processor says so."""
    asked, _, _ = served.put("tool", "1", [LAYER])
    served.put("tool", "2", [OTHER])
    served.manifests["tool", asked] = served.manifests["tool", "2"]
    name = f"docker://{served.address}/tool"
    with pytest.raises(BelljarError, match=r"digest"):
        import_image(home, f"{name}@{asked}")
    served.put("tool", "1", [LAYER])
    served.blobs[sha256(LAYER)] = OTHER.ljust(len(LAYER), b"\0")
    with pytest.raises(BelljarError):
        import_image(home, f"{name}:1")
    with pytest.raises(HostError, match="manifest unknown"):
        import_image(home, f"{name}:none")
    top, _, _ = served.put("tool", "1", [LAYER], is_index=True)
    kind, content = served.manifests["tool", top]
    served.manifests["tool", "1"] = (kind, content.replace(b'"linux"', b'"plan9"'))
    with pytest.raises(PolicyError, match="made for"):
        import_image(home, f"{name}:1")
    assert Store(home).list() == ()


@pytest.mark.promise("1.8")
def test_a_registry_that_hangs_is_given_up(served: Registry, home: Path) -> None:
    """A bounded wait, one error, nothing left; a refused connection at once."""
    served.put("tool", "1", [LAYER])
    never = threading.Event()

    def hang(path: str) -> None:
        if "/blobs/" in path:
            never.wait(60)

    served.before = hang
    try:
        with pytest.raises(HostError, match=r"took longer|nothing came"):
            import_image(home, f"docker://{served.address}/tool:1", limits=HASTY)
    finally:
        never.set()
    with pytest.raises(HostError, match="refused"):
        import_image(home, "docker://127.0.0.1:1/tool:1", limits=HASTY)
    assert Store(home).list() == ()


@pytest.mark.promise("1.8")
def test_daemons_are_asked_for_an_image(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman for what Docker lacks; too much, half, none or a hanging daemon is one error."""
    there = docker(tmp_path / "docker", monkeypatch)
    podman = docker(tmp_path / "podman", monkeypatch, "podman")
    archive = docker_archive(tmp_path / "a.tar", [LAYER])
    there.put("small", archive)
    podman.put("only-podman-has-this", archive)
    with pytest.raises(PolicyError, match="larger"):
        import_image(home, "docker-daemon:small", limits=ImportLimits(max_bytes=-(64 << 20) + 1000))
    image = import_image(home, "docker-daemon:small")
    assert image.names == ("small",)
    for ref in ("small", "small:latest", "docker.io/library/small", *image.origins):
        assert Store(home).find(ref).digest == image.digest
    podmans = import_image(home, "docker-daemon:only-podman-has-this")
    assert "only-podman-has-this" in podmans.names
    for ref in ("none", f"small@{sha256(b'?')}"):
        with pytest.raises(BelljarError, match="No such image"):
            import_image(home, f"docker-daemon:{ref}")
    there.cut("small", 3000)
    with pytest.raises(BelljarError):
        import_image(home, "docker-daemon:small")
    for each in (there, podman):
        each.hang("save")
    hasty = ImportLimits(timeout_s=60, answer_s=60, stall_s=0.2)
    with pytest.raises(HostError, match="nothing came"):
        import_image(home, "docker-daemon:small", limits=hasty)


@pytest.mark.promise("1.8")
def test_names_come_out_of_archives(tmp_path: Path, home: Path) -> None:
    """From annotations; a file without any needs `--name`."""
    key, containerd = "org.opencontainers.image.ref.name", "io.containerd.image.name"
    for marks, names in (
        ({key: "ghcr.io/a/b:2"}, ("ghcr.io/a/b:2",)),
        ({key: "localhost/c:3"}, ("c:3", "localhost/c:3")),
        ({containerd: "docker.io/library/d:4", key: "4"}, ("d:4",)),
    ):
        made = layer(entry("n", repr(names).encode()))
        archive = oci_archive(tmp_path / "named.tar", [made], annotations=marks)
        assert import_image(home, f"oci-archive:{archive}").names == names
    for mark in ("latest", "default:latest"):
        archive = oci_archive(tmp_path / "named.tar", [OTHER], annotations={key: mark})
        with pytest.raises(PolicyError, match="no name"):
            import_image(home, f"oci-archive:{archive}")
    assert import_image(home, f"oci-archive:{archive}", name="mine:1").names == ("mine:1",)


def host_program(name: str) -> bytes:
    """A layer with a program of this host and the libraries that it loads."""
    path = Path(shutil.which(name) or "").resolve()
    ldd = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    files = {f"bin/{name}": path, **{file[1:]: Path(file) for file in re.findall(r"/\S+", ldd)}}
    return layer(*(entry(to, file.read_bytes(), mode=0o755) for to, file in files.items()))


@pytest.mark.promise("1.8")
@pytest.mark.root
def test_a_pinned_image_of_a_registry_runs_in_a_cell(
    served: Registry,
    vm_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A policy that pins a digest gets that image; with another digest nothing runs."""
    monkeypatch.setenv("BELLJAR_HOME", str(vm_home))
    pinned, _, _ = served.put("echo", "1", [host_program("echo")], is_index=True)
    name = f"{served.address}/echo"
    assert run(["image", "import", f"docker://{name}:1", f"docker://{name}:1@{pinned}"]) == 0
    policy = tmp_path / "policy.yaml"
    try:
        text = "belljar: 1\nrisk: low\ntier: container\nuser: 0\nworkdir: /\nimage: "
        policy.write_text(f"{text}'{name}:1@{pinned}'\n")
        command = ["exec", str(policy), "--", "/bin/echo", "it", "runs"]
        assert run(command) == 0
        assert "it runs\n" in capfd.readouterr().out
        other = sha256(b"another")
        policy.write_text(policy.read_text().replace(pinned, other))
        assert run(command) == 3
        assert f"belljar image import docker://{name}@{other}" in capfd.readouterr().err
    finally:
        Store(vm_home).remove(pinned)
