"""Builds an image from a Dockerfile with buildah: bases from the store, the result packed.

Steps run in a user namespace, by default without network, on temporary storage. A stored recipe is
not built again; its bases stay loaded for later builds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from belljar.descriptors import open_fd
from belljar.errors import HostError, PolicyError
from belljar.image import storage
from belljar.image.config import config_of
from belljar.image.context import read_ignore, take_context
from belljar.image.dockerfile import EMPTY, Buildable, make_buildable
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.oci import check_platform, pack_layer
from belljar.image.origin import parse_document
from belljar.image.stages import MAX_BYTES, Bases, DockerfileError, base_images
from belljar.image.store import Image, Store, check_name
from belljar.image.tools import WORK, give_tree, tool, user_namespace
from belljar.policy.files import open_regular, read_regular
from belljar.store.home import make_store_dir, need_space
from belljar.store.locks import alone
from belljar.store.scratch import orphans, scratch_dir
from belljar.units import format_size, printable

# Of a recipe: the same Dockerfile means something else than before, and is built again.
_FORMAT: Final = 2
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

Report = Callable[[str], None]


class StepError(PolicyError):
    """A failed Dockerfile step; `wants_network`: it may need one, and had none."""

    code = "build_failed"
    wants_network = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """A build. `dockerfile`: None for the context's; `inline`: its text instead."""

    context: Path
    name: str
    dockerfile: Path | None = None
    inline: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    has_network: bool = False
    keep_setuid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecipe:
    """`inputs`: all that decides the image, except network and setuid options."""

    dockerfile: Path
    found: Bases
    made: Buildable
    bases: Mapping[str, Image]
    inputs: Mapping[str, Any]

    def provenance(self, *, has_network: bool, keep_setuid: bool) -> dict[str, Any]:
        """Return the stored facts of a build with these options; `recipe` digests them."""
        decisive = {**self.inputs, "network": has_network, "keep_setuid": keep_setuid}
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        kept = ("dockerfile", "context", "target", "bases", "network")
        about = {name: decisive[name] for name in kept}
        return {"recipe": f"sha256:{digest}", **about, "args": sorted(decisive["args"])}


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
            is_named = request.name in image.names
            return (image if is_named else store.name(image, request.name)), False
    tool("buildah")
    first_uid = storage.first_id_of(home)
    # For an ordinary user, `sweep` can't remove what killed builds left with other ids.
    make_store_dir(home / "tmp")
    for path in orphans(home / "tmp"):
        with suppress(OSError), alone(path) as free:  # another build removes it
            if free:
                storage.remove_built(home, path, first_uid)
    size = sum(base.size_bytes for base in recipe.bases.values())
    need_space(home, storage.MIN_FREE_BYTES + 2 * size, "building an image")
    with ExitStack() as held:
        scratch = held.enter_context(scratch_dir(home))
        work = held.enter_context(storage.work_dir(home, scratch, first_uid))
        _take_files(request, recipe, work, first_uid)
        bases = {
            name: held.enter_context(storage.hold_base(home, image, first_uid, report))
            for name, image in recipe.bases.items()
        }
        source = printable(f"build {request.context}", max_chars=300)
        shown = [base.path for base in bases.values()]
        with user_namespace(
            home, work, first_uid=first_uid, shown=shown, has_network=request.has_network
        ) as inside:
            tools = storage.Tools(
                inside=inside, report=report, bases=tuple(dict.fromkeys(bases.values()))
            )
            try:
                tools.prepare()
                _build(tools, request, recipe, bases)
                report("packing the result")
                result = pack_result(tools, recipe.made.volumes, keep_setuid=request.keep_setuid)
            except LayerError as error:
                raise error.refusal(source) from error
        return store.add(**result, name=request.name, source=source, built=provenance), True


def is_built(store: Store, image: Image, request: BuildRequest) -> bool:
    """Return whether these files made it, whatever network and setuid options."""
    recipe = read_recipe(store, request)
    options = [(network, setuid) for network in (False, True) for setuid in (False, True)]
    made = [recipe.provenance(has_network=one, keep_setuid=other) for one, other in options]
    return image.built.get("recipe") in {each["recipe"] for each in made}


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
    except (OSError, ValueError) as error:
        what = error.strerror or "an error" if isinstance(error, OSError) else str(error)
        shown = f"the Dockerfile can't be built: {printable(what)}"
        raise PolicyError(shown, where=printable(str(dockerfile))) from error
    for name in found.images:
        if (missing := store.missing(name)) is not None:
            what = f"the base image {printable(name)} is not in the store"
            raise HostError(what, where=printable(str(dockerfile)), hint=missing.hint)
    inputs = {
        "format": _FORMAT,
        "dockerfile": hashlib.sha256(raw).hexdigest(),
        "context": take_context(request.context, read_ignore(request.context, dockerfile)),
        "args": dict(sorted(request.args.items())),
        "target": request.target,
        "bases": {name: f"sha256:{image.digest}" for name, image in bases.items()},
    }
    return BuildRecipe(dockerfile=dockerfile, found=found, made=made, bases=bases, inputs=inputs)


def _take_files(request: BuildRequest, recipe: BuildRecipe, work: Path, first_uid: int) -> None:
    """Copy the context and here-document files. Raises `PolicyError`."""
    (work / "context").mkdir(mode=0o755)
    empty = work / "heredocs" / EMPTY
    empty.mkdir(parents=True)
    os.utime(empty, (0, 0))
    ignored = read_ignore(request.context, recipe.dockerfile)
    if take_context(request.context, ignored, work / "context") != recipe.inputs["context"]:
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
    tools: storage.Tools,
    request: BuildRequest,
    recipe: BuildRecipe,
    bases: Mapping[str, storage.Base],
) -> None:
    """Run the steps. Raises as `build_dockerfile`."""
    work, ids = tools.inside.work, {name: base.image_id for name, base in bases.items()}
    configs = {name: image.config for name, image in recipe.bases.items()}
    made = make_buildable(recipe.found, ids, configs)
    (work / "Dockerfile").write_text(made.text, encoding="utf-8")
    give_tree(work / "Dockerfile", tools.inside.first_uid)
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
    tools.tail.clear()
    argv = tools.buildah("build", *options, str(WORK / "context"))
    try:
        tools.run(*argv, has_network=request.has_network)
    except storage.NoSpaceError:
        raise
    except HostError as error:
        tail = "\n".join(tools.tail) or error.what
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
    tools: storage.Tools, volumes: Iterable[str], *, keep_setuid: bool
) -> dict[str, Any]:
    """Pack the image `RESULT`, with these volumes, where the namespace can't reach it.

    Returns what `Store.add` takes of it; a step that broke out of its container can have forged
    that. Raises `LayerError` for what an image may not have, `HostError`.
    """
    rootfs = tools.inside.work.parent / "rootfs"
    try:
        with _held_directory(tools.inside.work / "out", tools.inside.first_uid) as out:
            buildah = shlex.join(tools.buildah())
            tools.run("/bin/sh", "-ec", _EXPORT.format(buildah=buildah))
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
    """Make a directory; yield a path that survives its replacement."""
    path.mkdir(mode=0o700)  # nothing of the steps is here: this fails if they made one
    with open_fd(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        give_tree(path, owner)
        yield Path(f"/proc/self/fd/{fd}")
