"""Building an image from a Dockerfile with buildah: bases from the store, the result imported.

Every step runs in a user namespace, by default without network, on temporary storage.
A recipe already in the store is not built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from belljar.errors import HostError, PolicyError
from belljar.image.config import HEALTH_NUMBERS, HealthCheck
from belljar.image.context import read_ignore, take_context
from belljar.image.copies import prepare
from belljar.image.dockerfile import (
    MAX_BYTES,
    Bases,
    Buildable,
    DockerfileError,
    base_images,
    make_buildable,
)
from belljar.image.kernel import debian_arch
from belljar.image.layers import ImportLimits
from belljar.image.oci import import_directory
from belljar.image.store import MADE_HERE, Image, Store, check_name, file_sha256
from belljar.image.tools import WORK, Inside, give_tree, tool, user_namespace
from belljar.policy.files import read_regular
from belljar.store.home import HINT_SPACE, make_store_dir, need_space
from belljar.store.scratch import orphans, remove_tree, scratch_dir
from belljar.units import format_size, printable

HINT_SETUP: Final = "run `belljar setup --with build`, or install the package buildah"
DOCKERFILES: Final = ("Dockerfile", "Containerfile")
_MIN_FREE_BYTES: Final = 256 << 20
_TIMEOUT_S: Final = 3600.0
_TAIL_LINES: Final = 12
_RESULT: Final = "localhost/result"
_MANIFEST_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG_TYPE: Final = "application/vnd.docker.container.image.v1+json"
_LAYER_TYPE: Final = "application/vnd.docker.image.rootfs.diff.tar"
# What ARG can't declare and RUN has all the same.
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_NO_NETWORK: Final = re.compile(
    "resolv(e|ing) (?!depend)|name or service not known|name resolution|getaddrinfo|unreachable"
    "|bad address|connection refused|no route to host|enotfound|eai_again|dial tcp"
    "|failed to connect",
    re.IGNORECASE,
)
_STORAGE: Final = ("storage", "run", "home", "tmp")

Report = Callable[[str], None]


class StepError(PolicyError):
    """A step of a Dockerfile failed; `wants_network`: as one without a network does."""

    code = "build_failed"
    wants_network = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build. `dockerfile`: None for the context's own; `inline`: its text instead.

    `volumes`: host directories that the steps may read, in Belljar's own recipes only.
    """

    context: Path
    name: str
    dockerfile: Path | None = None
    inline: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    has_network: bool = False
    keep_setuid: bool = False
    volumes: tuple[Path, ...] = ()
    timeout_s: float = _TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`inputs`: all that decides the image, except network and setuid options."""

    found: Bases
    made: Buildable
    bases: Mapping[str, Image]
    inputs: Mapping[str, Any]

    def provenance(self, *, has_network: bool, keep_setuid: bool) -> dict[str, Any]:
        """What the store keeps of a build with these options; `recipe` is the digest of all.

        Pure.
        """
        decisive = {**self.inputs, "network": has_network, "keep_setuid": keep_setuid}
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        kept = {
            name: decisive[name] for name in ("dockerfile", "context", "target", "bases", "network")
        }
        return {"recipe": f"sha256:{digest}", **kept, "args": sorted(decisive["args"])}


def build_dockerfile(
    home: Path, request: BuildRequest, *, report: Report = lambda _line: None
) -> tuple[Image, bool]:
    """The image of a Dockerfile, named `request.name`, and whether it had to be built.

    Raises `PolicyError` for an unusable Dockerfile or context or a failing step, `HostError` for a
    missing tool or base; the store is then as it was.
    """
    check_name(request.name)
    store = Store(home)
    recipe = read_recipe(store, request)
    provenance = recipe.provenance(has_network=request.has_network, keep_setuid=request.keep_setuid)
    for image in store.list():
        if image.built.get("recipe") == provenance["recipe"]:
            return (
                image if request.name in image.names else store.name(image, request.name)
            ), False
    check_buildah()
    size = sum(base.size_bytes for base in recipe.bases.values())
    need_space(home, _MIN_FREE_BYTES + 8 * size, "building an image")
    with user_namespace() as inside:
        # For an ordinary user, `sweep` can't remove what killed builds left with other ids.
        make_store_dir(home / "tmp")
        for path in orphans(home / "tmp"):
            _remove(path, inside)
        with scratch_dir(home) as scratch, _work_dir(scratch, inside) as work:
            _Build(inside, work, request, recipe, report).run()
            return import_directory(
                home,
                work / "out",
                scratch,
                names=[request.name],
                source=printable(f"build {request.context}", max_chars=300),
                built=provenance,
                limits=ImportLimits(),
                keep_setuid=request.keep_setuid,
                start_interval_ns=recipe.made.start_interval_ns,
                report=report,
            ), True


def is_built(store: Store, image: Image, request: BuildRequest) -> bool:
    """Whether these files made it, with or without network and setuid bits."""
    recipe = read_recipe(store, request)
    return any(
        image.built.get("recipe")
        == recipe.provenance(has_network=has_network, keep_setuid=keep_setuid)["recipe"]
        for has_network in (False, True)
        for keep_setuid in (False, True)
    )


def check_buildah() -> None:
    """Raises `HostError` when buildah is missing."""
    try:
        tool("buildah")
    except HostError as error:
        raise HostError(
            "building an image from a Dockerfile needs buildah", hint=HINT_SETUP
        ) from error


def read_recipe(store: Store, request: BuildRequest) -> Recipe:
    """Read the Dockerfile, its context and bases. Raises as `build_dockerfile`."""
    dockerfile = request.dockerfile or _dockerfile_in(request.context)
    try:
        raw = request.inline.encode()
        raw = raw or read_regular(dockerfile.parent, dockerfile.name, MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise DockerfileError(f"it is larger than {format_size(MAX_BYTES)}")
        found = base_images(raw.decode("utf-8-sig"), request.args, target=request.target)
        bases = {name: store.find(name) for name in found.images if store.missing(name) is None}
        # What it refuses is known before a base is asked for or loaded.
        made = make_buildable(found, {}, {name: each.config for name, each in bases.items()})
    except (OSError, ValueError) as error:
        what = error.strerror or "an error" if isinstance(error, OSError) else str(error)
        raise PolicyError(
            f"the Dockerfile can't be built: {printable(what)}", where=printable(str(dockerfile))
        ) from error
    for name in found.images:
        if (missing := store.missing(name)) is not None:
            what = f"the base image {printable(name)} is not in the store"
            raise HostError(what, where=printable(str(dockerfile)), hint=missing.hint)
    inputs = {
        "dockerfile": hashlib.sha256(raw).hexdigest(),
        "context": take_context(request.context, read_ignore(request.context, dockerfile)),
        "args": dict(sorted(request.args.items())),
        "target": request.target,
        "bases": {name: f"sha256:{image.digest}" for name, image in bases.items()},
    }
    return Recipe(found=found, made=made, bases=bases, inputs=inputs)


def _dockerfile_in(context: Path) -> Path:
    if not context.is_dir():
        hint = (
            f"name a directory with a Dockerfile, or one of Belljar's own images: "
            f"{', '.join(MADE_HERE)}"
        )
        raise PolicyError("the context is no directory", where=printable(str(context)), hint=hint)
    return next(
        (context / name for name in DOCKERFILES if os.path.lexists(context / name)),
        context / "Dockerfile",
    )


@contextmanager
def _work_dir(scratch: Path, inside: Inside) -> Iterator[Path]:
    """A directory of the namespace's root."""
    scratch.chmod(0o711)
    work = scratch / "build"
    work.mkdir(mode=0o700)  # what a context brings may have the set-user-ID bit
    for name in _STORAGE:
        (work / name).mkdir(mode=0o700)
    give_tree(work, inside.first_uid)
    try:
        yield work
    finally:
        _remove(work, inside)


def _remove(directory: Path, inside: Inside) -> None:
    # An ordinary user needs the namespace, where the files have owners.
    if os.geteuid() != 0 and directory.exists():
        try:
            inside.run(
                [tool("rm"), "-rf", "--", str(WORK / directory.name)],
                env={},
                cwd=directory.parent,
                timeout_s=300,
            )
        except HostError:
            return
    else:
        remove_tree(directory)


class _NoSpaceError(HostError): ...


class _Build:
    def __init__(
        self, inside: Inside, work: Path, request: BuildRequest, recipe: Recipe, report: Report
    ) -> None:
        self._inside, self._work, self._request, self._recipe = inside, work, request, recipe
        self._report = report
        self._tail: list[str] = []
        self._env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "HOME": str(WORK / "home"),
            "XDG_RUNTIME_DIR": str(WORK / "home"),
            "TMPDIR": str(WORK / "tmp"),
        }
        self._driver = "overlay"

    def run(self) -> None:
        """Leave the image's parts in `out`. Raises as `build_dockerfile`."""
        work, request = self._work, self._request
        (work / "context").mkdir(mode=0o755)
        dockerfile = request.dockerfile or _dockerfile_in(request.context)
        digest = take_context(
            request.context, read_ignore(request.context, dockerfile), work / "context"
        )
        if digest != self._recipe.inputs["context"]:
            raise PolicyError(
                "the context was changed while it was read", where=printable(str(request.context))
            )
        self._prepare(self._recipe.made, dockerfile)
        for name in ("registries.conf", "ignore"):
            (work / name).write_text("")
        policy = {"default": [{"type": "insecureAcceptAnything"}]}
        (work / "home/.config/containers").mkdir(parents=True)
        (work / "home/.config/containers/policy.json").write_text(json.dumps(policy))
        for name in ("context", "heredocs", "registries.conf", "ignore", "home"):
            give_tree(work / name, self._inside.first_uid)
        try:
            self._buildah("images", "--quiet")
        except HostError:
            self._driver = "vfs"
            remove_tree(work / "storage")
            (work / "storage").mkdir(mode=0o700)
            give_tree(work / "storage", self._inside.first_uid)
        ids = {name: self._load(image) for name, image in self._recipe.bases.items()}
        self._bud(ids)
        self._tail.clear()
        self._report("reading the result")
        self._buildah("push", "--quiet", "--disable-compression", _RESULT, f"dir:{WORK / 'out'}")
        if any(path.is_symlink() or not path.is_file() for path in (work / "out").iterdir()):
            raise PolicyError(
                "what the build made can't be read as an image", where=str(work / "out")
            )
        give_tree(work / "out", 0)  # ours from now on, so that nothing changes it while it is read

    def _prepare(self, made: Buildable, dockerfile: Path) -> None:
        """Write what COPY takes of here-documents, and of the context where buildah can't."""
        (self._work / "heredocs").mkdir()
        for file in made.files:
            path = self._work / "heredocs" / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8")
            path.chmod(file.mode)
        try:
            for copy in made.copies:
                prepare(copy, self._work / "context", self._work / "heredocs")
        except DockerfileError as error:
            what = f"the Dockerfile can't be built: {printable(str(error))}"
            raise PolicyError(what, where=printable(str(dockerfile))) from error

    def _load(self, image: Image) -> str:
        """Load a stored image into buildah; returns its id."""
        self._report(f"loading the base {image.names[0] if image.names else image.digest[:12]}")
        base, there = self._work / f"base-{image.digest}", WORK / f"base-{image.digest}"
        base.mkdir(mode=0o700)
        give_tree(base, self._inside.first_uid)
        os.link(image.rootfs, base / "rootfs")
        self._plain("unsquashfs", "-q", "-n", "-d", str(there / "root"), str(there / "rootfs"))
        tar = ("--numeric-owner", "--xattrs", "--sort=name", "-cf", str(there / "layer"), ".")
        self._plain("tar", "-C", str(there / "root"), *tar)
        self._plain("rm", "-rf", str(there / "root"), str(there / "rootfs"))
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
        give_tree(base, self._inside.first_uid)
        self._buildah("pull", "--quiet", f"dir:{there}")
        self._plain("rm", "-rf", str(there))
        return config_id

    def _bud(self, ids: Mapping[str, str]) -> None:
        request, recipe, work = self._request, self._recipe, self._work
        configs = {name: image.config for name, image in recipe.bases.items()}
        made = make_buildable(recipe.found, ids, configs)
        (work / "Dockerfile").write_text(made.text, encoding="utf-8")
        give_tree(work / "Dockerfile", self._inside.first_uid)
        options = [
            *("--pull=never", "--isolation=oci", "--network=host", "--format=docker"),
            *("--layers=false", "--rm", "--http-proxy=false", "--identity-label=false"),
            "--ulimit=nproc=8192:8192",
            *(
                f"--build-context={name}=container-image://{image_id}"
                for name, image_id in ids.items()
            ),
            f"--build-context={made.heredoc_context}={WORK}/heredocs",
            *(
                f"--build-arg={name}={value}"
                for name, value in request.args.items()
                if name.lower() in _PROXIES
            ),
            *(f"--volume={path}:{path}:ro" for path in request.volumes),
            *(f"--ignorefile={WORK}/ignore", f"--tag={_RESULT}", f"--file={WORK}/Dockerfile"),
        ]
        self._tail.clear()
        try:
            self._buildah("build", *options, str(WORK / "context"), has_network=request.has_network)
        except _NoSpaceError:
            raise
        except HostError as error:
            tail = "\n".join(self._tail[-_TAIL_LINES:]) or error.what
            failure = StepError(f"the build failed:\n{tail}", where=str(request.context))
            user = next(iter(made.step_users - {"root", "0"}), "")
            if not request.has_network and _NO_NETWORK.search(tail):
                failure.wants_network = True
                failure.hint = "the steps have no network; if they need it, add --network"
            elif user and "permission denied" in tail.lower():
                failure.hint = f"the image's user is `{printable(user)}`: add `USER root` before it"
            raise failure from error

    def _buildah(self, *words: str, has_network: bool = False) -> None:
        storage = f"--root {WORK}/storage --runroot {WORK}/run --storage-driver {self._driver}"
        names = f"--registries-conf {WORK}/registries.conf --registries-conf-dir {WORK}/none"
        aliases = f"--short-name-alias-conf {WORK}/home/aliases"
        argv = [tool("buildah"), *f"{storage} {names} {aliases}".split(), *words]
        self._inside.run(
            argv,
            env=self._env,
            cwd=self._work,
            timeout_s=self._request.timeout_s,
            has_network=has_network,
            readable=self._request.volumes,
            on_line=self._say,
            watch=self._check_space,
        )

    def _plain(self, name: str, *words: str) -> None:
        self._inside.run(
            [tool(name), *words],
            env=self._env,
            cwd=self._work,
            timeout_s=600,
            watch=self._check_space,
        )

    def _say(self, line: str) -> None:
        shown = printable(line, max_chars=400)
        self._tail = [*self._tail[-_TAIL_LINES:], shown]
        self._report(shown)

    def _check_space(self) -> None:
        free = shutil.disk_usage(self._work).free
        if free < _MIN_FREE_BYTES // 4:
            raise _NoSpaceError(
                f"no space is left to build the image ({format_size(free)} free); the build was "
                f"stopped",
                where=str(self._work.parents[2]),
                hint=HINT_SPACE,
            )


def _part(kind: str, file: Path) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{file.name}", "size": file.stat().st_size}


def base_config(image: Image, layer_digest: str) -> dict[str, Any]:
    """A stored image's Docker configuration. Pure."""
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
        "Volumes": {path: {} for path in image.volumes},
    }
    return {
        "architecture": debian_arch(),
        "os": "linux",
        "created": created,
        "config": {name: value for name, value in config.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created": created, "created_by": f"belljar {image.digest}"}],
    }
