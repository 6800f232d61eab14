"""Bases loaded into buildah's storage, kept for later builds: build-bases/<image digest>.

They have the ids of the store's builds. A base is shown to builds read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from belljar.errors import HostError
from belljar.image.config import HEALTH_NUMBERS, HealthCheck, debian_arch
from belljar.image.store import Image, file_sha256, verify
from belljar.image.tools import (
    MIN_FREE_BYTES,
    SHOWN,
    WORK,
    Inside,
    Report,
    give_tree,
    run_tool,
    tool,
    user_namespace,
)
from belljar.policy.files import read_regular
from belljar.store.home import make_store_dir, need_space
from belljar.store.locks import claimed, locked
from belljar.store.scratch import remove_tree, retire_unclaimed, scratch_dir

BASES: Final = "build-bases"
# A base lies there as files, as an archive and as a layer while it is loaded.
_EXPANSION: Final = 8
_ID: Final = re.compile("[0-9a-f]{64}")
# Another name than that of bases that an earlier version loaded with their volumes.
_ID_FILE: Final = "image-id.2"
_MANIFEST_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG_TYPE: Final = "application/vnd.docker.container.image.v1+json"
_LAYER_TYPE: Final = "application/vnd.docker.image.rootfs.diff.tar"


class Base(NamedTuple):
    path: Path
    image_id: str


def buildah_argv(bases: Iterable[Base] = ()) -> list[str]:
    storage = f"--root {WORK}/storage --runroot {WORK}/run --storage-driver overlay"
    names = f"--registries-conf {WORK}/registries.conf --registries-conf-dir {WORK}/none"
    aliases = f"--short-name-alias-conf {WORK}/home/aliases"
    places = dict.fromkeys(f"{SHOWN}/{base.path.name}" for base in bases)
    shown = [f"--storage-opt=overlay.imagestore={place}" for place in places]
    return [tool("buildah"), *f"{storage} {names} {aliases}".split(), *shown]


@contextmanager
def work_dir(home: Path, scratch: Path, first_uid: int) -> Iterator[Path]:
    """Make a directory of the namespace's root."""
    scratch.chmod(0o711)
    work = scratch / "build"
    work.mkdir(mode=0o700)  # what a context brings may have the set-user-ID bit
    for name in ("storage", "run", "home", "tmp"):
        (work / name).mkdir(mode=0o700)
    for name in ("registries.conf", "ignore"):
        (work / name).write_text("")
    settings = work / "home/.config/containers"
    settings.mkdir(parents=True)
    policy = {"default": [{"type": "insecureAcceptAnything"}]}
    (settings / "policy.json").write_text(json.dumps(policy))
    give_tree(work, first_uid)
    try:
        yield work
    finally:
        remove_built(home, work, first_uid)


def remove_built(home: Path, directory: Path, first_uid: int) -> None:
    """Remove a tree, as an ordinary user in the namespace of its ids."""
    if os.geteuid() == 0 or not directory.exists():
        remove_tree(directory)
        return
    with suppress(HostError), user_namespace(home, directory.parent, first_uid=first_uid) as inside:
        inside.run("rm", "-rf", "--", str(WORK / directory.name))


@contextmanager
def hold_base(home: Path, image: Image, first_uid: int, report: Report) -> Iterator[Base]:
    """Load the image; `belljar prune` leaves it meanwhile."""
    path = home / BASES / image.digest
    make_store_dir(path.parent)
    with ExitStack() as held:
        with locked(home, BASES):
            while True:
                if not _is_of(path, first_uid):
                    remove_kept(home, path)  # one of other ids
                    _load(home, image, first_uid, report)
                with suppress(FileNotFoundError):  # `belljar prune` has just removed it
                    held.enter_context(claimed(path))
                    break
        image_id = read_regular(path, _ID_FILE, 65).decode("ascii", "replace")
        if _ID.fullmatch(image_id) is None:
            raise HostError("a loaded base was changed", where=str(path), hint=f"remove {path}")
        yield Base(path=path, image_id=image_id)


def _is_of(path: Path, first_uid: int) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_uid == first_uid and (path / _ID_FILE).is_file()
    return False


def remove_kept(home: Path, path: Path) -> None:
    """Remove a base, unless it is in use."""
    if (retired := retire_unclaimed(path)) is not None:
        with suppress(FileNotFoundError):  # another program finds it, and removes it too
            remove_built(home, retired, retired.stat().st_uid)


def _load(home: Path, image: Image, first_uid: int, report: Report) -> None:
    verify(image)
    need_space(home, MIN_FREE_BYTES + _EXPANSION * image.size_bytes, "loading a base")
    report(f"loading the base {image.names[0] if image.names else image.digest[:12]}")
    with scratch_dir(home) as scratch, work_dir(home, scratch, first_uid) as work:
        with user_namespace(home, work, first_uid=first_uid, report=report) as inside:
            image_id = _pull(inside, image)
        with (work / "storage" / _ID_FILE).open("x") as file:  # never through a link
            file.write(image_id)
        run_tool([tool("sync"), "--file-system", str(work)], timeout_s=600)
        (work / "storage").rename(home / BASES / image.digest)


def _pull(inside: Inside, image: Image) -> str:
    work, first_uid = inside.work, inside.first_uid
    base, there = work / "base", WORK / "base"
    base.mkdir(mode=0o700)
    give_tree(base, first_uid)
    os.link(image.rootfs, base / "rootfs")
    inside.run("unsquashfs", "-q", "-n", "-d", str(there / "root"), str(there / "rootfs"))
    tar = ("--numeric-owner", "--xattrs", "--sort=name", "-cf", str(there / "layer"), ".")
    inside.run("tar", "-C", str(there / "root"), *tar)
    layer = base / "layer"
    layer_id = file_sha256(layer)
    config = json.dumps(base_config(image, layer_id)).encode()
    config_id = hashlib.sha256(config).hexdigest()
    layer.rename(base / layer_id)
    (base / config_id).write_bytes(config)
    (base / "version").write_text("Directory Transport Version: 1.1\n")
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": _part(_CONFIG_TYPE, base / config_id),
        "layers": [_part(_LAYER_TYPE, base / layer_id)],
    }
    (base / "manifest.json").write_text(json.dumps(manifest))
    for name in (config_id, "version", "manifest.json"):
        give_tree(base / name, first_uid)
    inside.run(*buildah_argv(), "pull", "--quiet", f"dir:{there}")
    return config_id


def _part(kind: str, file: Path) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{file.name}", "size": file.stat().st_size}


def base_config(image: Image, layer_digest: str) -> dict[str, Any]:
    """Return a stored image's Docker configuration without volumes (`Buildable`)."""
    check = image.healthcheck or HealthCheck(test=())
    created = image.created or "1970-01-01T00:00:00Z"
    numbers = {name: getattr(check, field) for field, name in HEALTH_NUMBERS.items()}
    health = {"Test": list(check.test), **numbers}
    config: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in image.env.items()],
        "User": "" if image.user == "root" else image.user,
        "WorkingDir": image.workdir,
        "Entrypoint": list(image.entrypoint) or None,
        "Cmd": list(image.cmd) or None,
        "Healthcheck": {name: value for name, value in health.items() if value},
        "Shell": list(image.shell),
        "StopSignal": image.stop_signal,
    }
    return {
        "architecture": debian_arch(),
        "os": "linux",
        "created": created,
        "config": {name: value for name, value in config.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created": created, "created_by": f"belljar {image.digest}"}],
    }
