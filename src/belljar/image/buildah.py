"""Builds images from Dockerfiles with buildah in a user namespace."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from belljar.descriptors import open_fd
from belljar.errors import HostError, PolicyError
from belljar.image.config import HEALTH_NUMBERS, HealthCheck, config_of, debian_arch
from belljar.image.context import read_ignore, take_context
from belljar.image.dockerfile import (
    EMPTY,
    MAX_BYTES,
    Bases,
    Buildable,
    DockerfileError,
    base_images,
    make_buildable,
)
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.oci import check_platform, pack_layer
from belljar.image.origin import parse_document
from belljar.image.store import Image, Store, check_name, file_sha256, verify
from belljar.image.tools import (
    MIN_FREE_BYTES,
    SHOWN,
    WORK,
    Inside,
    NoSpaceError,
    Report,
    first_id_of,
    give_tree,
    run_tool,
    tool,
    user_namespace,
)
from belljar.policy.files import open_regular, read_regular
from belljar.store.home import make_store_dir, need_space
from belljar.store.locks import alone, claimed, locked
from belljar.store.scratch import orphans, remove_tree, retire_unclaimed, scratch_dir
from belljar.units import format_size, printable

# Of a recipe: the same Dockerfile means something else than before, and is built again.
_FORMAT: Final = 3
RESULT: Final = "localhost/result"
# A sparse file takes its whole size in the archive: it is stopped here, in the shell's units of 512
# bytes, before it fills the disk.
_MAX_BLOCKS: Final = (ImportLimits().max_bytes + (1 << 30)) // 512
# Times in whole seconds, as in squashfs: a fraction would cost a header of its own for each file.
_EXPORT: Final = f"""
container=$({{buildah}} from --pull=never {RESULT})
mounted=$({{buildah}} mount "$container")
(ulimit -f {_MAX_BLOCKS}; exec tar --create --file={WORK}/out/layer --one-file-system \\
  --numeric-owner --xattrs --xattrs-include=security.capability --format=posix \\
  --pax-option=delete=atime,delete=ctime,delete=mtime \\
  --directory="${{{{mounted:?}}}}" .)
{{buildah}} rm "$container"
{{buildah}} inspect --type image {RESULT} > {WORK}/out/image
"""
# buildah's own description of an image, whose history has a line for each step.
_MAX_DOCUMENT_BYTES: Final = 16 << 20


class StepError(PolicyError):
    """`wants_network`: the failed step had none, and may need one."""

    code = "build_failed"
    wants_network = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    context: Path
    name: str
    dockerfile: Path | None = None
    inline: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    has_network: bool = False
    keep_setuid: bool = False


class BuildRecipe(NamedTuple):
    """`recipe` in `built` digests all but the options."""

    dockerfile: Path
    found: Bases
    made: Buildable
    bases: Mapping[str, Image]
    built: Mapping[str, Any]


def build_dockerfile(
    home: Path, request: BuildRequest, *, report: Report = lambda _line: None
) -> tuple[Image, bool]:
    """Return an image, and true if it had to be built. Raises `PolicyError`, `HostError`."""
    check_name(request.name)
    store = Store(home)
    recipe = read_recipe(store, request)
    for image in store.list():
        if image.built == recipe.built:
            is_named = request.name in image.names
            return (image if is_named else store.name(image, request.name)), False
    tool("buildah")
    first_uid = first_id_of(home)
    # For an ordinary user, `sweep` can't remove what killed builds left with other ids.
    make_store_dir(home / "tmp")
    for path in orphans(home / "tmp"):
        with suppress(OSError), alone(path) as free:  # another build removes it
            if free:
                remove_built(home, path, first_uid)
    size = sum(base.size_bytes for base in recipe.bases.values())
    need_space(home, MIN_FREE_BYTES + 2 * size, "building an image")
    with ExitStack() as held:
        scratch = held.enter_context(scratch_dir(home))
        work = held.enter_context(work_dir(home, scratch, first_uid))
        _take_files(request, recipe, work, first_uid)
        ids = {
            name: held.enter_context(hold_base(home, image, first_uid, report))
            for name, image in recipe.bases.items()
        }
        source = printable(f"build {request.context}", max_chars=300)
        shown = [home / BASES / image.digest for image in recipe.bases.values()]
        has_network, buildah = request.has_network, buildah_argv(shown)
        with user_namespace(
            home, work, first_uid=first_uid, shown=shown, has_network=has_network, report=report
        ) as inside:
            try:
                _build(inside, buildah, request, recipe, ids)
                report("packing the result")
                keep_setuid, volumes = request.keep_setuid, recipe.made.volumes
                result = pack_result(inside, buildah, volumes, keep_setuid=keep_setuid)
            except LayerError as error:
                raise error.refusal(source) from error
        return store.add(**result, name=request.name, source=source, built=recipe.built), True


def read_recipe(store: Store, request: BuildRequest) -> BuildRecipe:
    """Read Dockerfile, context and bases. Raises as `build_dockerfile`."""
    if request.dockerfile is None and not request.context.is_dir():
        raise PolicyError("the context is no directory", where=printable(str(request.context)))
    dockerfile = request.dockerfile or request.context / "Dockerfile"
    try:
        raw = request.inline.encode()
        raw = raw or read_regular(dockerfile.parent, dockerfile.name, MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise DockerfileError(f"it is larger than {format_size(MAX_BYTES)}")
        found = base_images(raw.decode("utf-8-sig"), request.args, target=request.target)
        bases = {name: store.find(name) for name in found.images if store.missing(name) is None}
        # What it refuses is known before a base is asked for or loaded.
        made = make_buildable(found, {}, {name: each.config for name, each in bases.items()})
        # Steps share one network: the author's wish for none is never overridden silently.
        if request.has_network and made.offline_line:
            what = f"line {made.offline_line}: RUN --network=none can't be kept with --network"
            raise DockerfileError(what)
    except (OSError, ValueError) as error:
        what = error.strerror or "an error" if isinstance(error, OSError) else str(error)
        shown = f"the Dockerfile can't be built: {printable(what)}"
        raise PolicyError(shown, where=printable(str(dockerfile))) from error
    for name in found.images:
        if (missing := store.missing(name)) is not None:
            what = f"the base image {printable(name)} is not in the store"
            raise HostError(what, where=printable(str(dockerfile)), hint=missing.hint)
    decisive = {
        "dockerfile": hashlib.sha256(raw).hexdigest(),
        "context": take_context(request.context, read_ignore(request.context, dockerfile)),
        "target": request.target,
        "bases": {name: f"sha256:{image.digest}" for name, image in bases.items()},
    }
    encoded = json.dumps([_FORMAT, decisive, dict(request.args)], sort_keys=True).encode()
    built = {
        "recipe": f"sha256:{hashlib.sha256(encoded).hexdigest()}",
        **decisive,
        "args": sorted(request.args),
        "network": request.has_network,
        "keep_setuid": request.keep_setuid,
    }
    return BuildRecipe(dockerfile, found, made, bases, built)


def _take_files(request: BuildRequest, recipe: BuildRecipe, work: Path, first_uid: int) -> None:
    (work / "context").mkdir(mode=0o755)
    empty = work / "heredocs" / EMPTY
    empty.mkdir(parents=True)
    os.utime(empty, (0, 0))
    ignored = read_ignore(request.context, recipe.dockerfile)
    if take_context(request.context, ignored, work / "context") != recipe.built["context"]:
        what = "the context was changed while it was read"
        raise PolicyError(what, where=printable(str(request.context)))
    for name, text in recipe.made.files.items():
        path = work / "heredocs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        os.utime(path, (0, 0))
    for name in ("context", "heredocs"):
        give_tree(work / name, first_uid)


def _build(
    inside: Inside,
    buildah: Sequence[str],
    request: BuildRequest,
    recipe: BuildRecipe,
    ids: Mapping[str, str],
) -> None:
    work = inside.work
    configs = {name: image.config for name, image in recipe.bases.items()}
    made = make_buildable(recipe.found, ids, configs)
    (work / "Dockerfile").write_text(made.text, encoding="utf-8")
    give_tree(work / "Dockerfile", inside.first_uid)
    options = [
        *("--pull=never", "--isolation=oci", "--network=host", "--format=docker"),
        # No label with buildah's version, and no proxy of this host's in a step's environment.
        *("--rm", "--http-proxy=false", "--identity-label=false"),
        "--layers=false",
        # A step that forks without end stops at its own bound, not at this host's.
        "--ulimit=nproc=8192:8192",
        *(f"--build-context={name}=container-image://{image_id}" for name, image_id in ids.items()),
        f"--build-context={made.heredoc_context}={WORK}/heredocs",
        *(f"--build-arg={name}={value}" for name, value in request.args.items()),
        *(f"--ignorefile={WORK}/ignore", f"--tag={RESULT}", f"--file={WORK}/Dockerfile"),
    ]
    inside.tail.clear()
    argv = [*buildah, "build", *options, str(WORK / "context")]
    try:
        inside.run(*argv, has_network=request.has_network)
    except NoSpaceError:
        raise
    except HostError as error:
        tail = "\n".join(inside.tail) or error.what
        failure = StepError(f"the build failed:\n{tail}", where=str(request.context))
        user = next(iter(made.step_users - {"root", "0"}), "")
        if user and "permission denied" in tail.lower():
            failure.hint = f"the image's user is `{printable(user)}`: add `USER root` before it"
        elif not request.has_network:
            failure.wants_network = True
            failure.hint = "the steps have no network; if they need it, add --network"
        raise failure from error


# ---- the result, taken out of the namespace
#
# It is judged as an imported layer is: a step that broke out of its container may have changed what
# the tools here read and write, so what they leave is believed as little as an archive from
# elsewhere.


def pack_result(
    inside: Inside, buildah: Sequence[str], volumes: Iterable[str], *, keep_setuid: bool
) -> dict[str, Any]:
    """Return arguments of `Store.add`, which a step that broke out can have forged."""
    rootfs = inside.work.parent / "rootfs"
    try:
        with _held_directory(inside.work / "out", inside.first_uid) as out:
            inside.run("/bin/sh", "-ec", _EXPORT.format(buildah=shlex.join(buildah)))
            raw = read_regular(out, "image", _MAX_DOCUMENT_BYTES)
            document = dict(parse_document(str(parse_document(raw).get("Config")).encode()))
            check_platform(document)
            named = config_of({"config": {"Volumes": dict.fromkeys(volumes)}})
            config = replace(config_of(document), volumes=named.volumes)
            with open_regular(out, "layer") as fd, os.fdopen(os.dup(fd), "rb") as file:
                tree = pack_layer(file, config, rootfs, keep_setuid=keep_setuid)
    except LayerError:
        raise
    except (OSError, ValueError) as error:  # not what the tools write
        raise LayerError(f"its files can't be read: {printable(str(error))}") from error
    created = printable(str(document.get("created") or ""), max_chars=40)
    kept = {"created": created, "setuid_programs": tree.setuid_programs}
    return {"rootfs": rootfs, "config": config, **kept}


@contextmanager
def _held_directory(path: Path, owner: int) -> Iterator[Path]:
    """Yield a path that survives the directory's replacement."""
    path.mkdir(mode=0o700)  # nothing of the steps is here: this fails if they made one
    with open_fd(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        give_tree(path, owner)
        yield Path(f"/proc/self/fd/{fd}")


# ---- bases: build-bases/<image digest>, loaded into storage of their own and kept for later builds

BASES: Final = "build-bases"
# A base lies there as files, as an archive and as a layer while it is loaded.
_EXPANSION: Final = 8
_ID: Final = re.compile("[0-9a-f]{64}")
# Another name than that of bases that an earlier version loaded with their volumes.
_ID_FILE: Final = "image-id.2"
_MANIFEST_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG_TYPE: Final = "application/vnd.docker.container.image.v1+json"
_LAYER_TYPE: Final = "application/vnd.docker.image.rootfs.diff.tar"


def buildah_argv(bases: Iterable[Path] = ()) -> list[str]:
    storage = f"--root {WORK}/storage --runroot {WORK}/run --storage-driver overlay"
    names = f"--registries-conf {WORK}/registries.conf --registries-conf-dir {WORK}/none"
    aliases = f"--short-name-alias-conf {WORK}/home/aliases"
    places = dict.fromkeys(f"{SHOWN}/{base.name}" for base in bases)
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
    """Use the namespace of its ids if this is no root."""
    if os.geteuid() == 0 or not directory.exists():
        remove_tree(directory)
        return
    with suppress(HostError), user_namespace(home, directory.parent, first_uid=first_uid) as inside:
        inside.run("rm", "-rf", "--", str(WORK / directory.name), may_fill=False)


@contextmanager
def hold_base(home: Path, image: Image, first_uid: int, report: Report) -> Iterator[str]:
    """Load the image, which `belljar prune` leaves meanwhile; yield its id in buildah."""
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
        yield image_id


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
