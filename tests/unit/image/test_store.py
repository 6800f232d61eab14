"""The image store: found by name, digest or prefix; whole or not there; names move."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.images import put_image

from belljar.errors import HostError, PolicyError
from belljar.image.config import HealthCheck, ImageConfig
from belljar.image.store import Image, Store, find_images, verify


def put(
    home: Path,
    name: str,
    content: bytes = b"hsqs",
    *,
    origins: Sequence[str] = (),
    **config: Any,  # noqa: ANN401 - parts of a configuration
) -> Image:
    return put_image(home, name, content, ImageConfig(**config), origins=origins)


@pytest.mark.promise("1.6")
def test_all_of_a_configuration_is_stored_and_part_of_the_digest(tmp_path: Path) -> None:
    """It comes back as it was; another word of it is another image."""
    home = tmp_path / "s"
    parts: dict[str, Any] = {
        "healthcheck": HealthCheck(test=("CMD", "up"), retries=3),
        "shell": ("/bin/bash", "-c"),
        "volumes": ("/data",),
        "stop_signal": "SIGINT",
        "on_build": ("RUN make",),
    }
    images = [put(home, name, **{name: part}) for name, part in parts.items()]
    images += [put(home, "whole", **parts), put(home, "plain")]
    assert Store(home).find("whole").config == ImageConfig(**parts)
    assert len({image.digest for image in images}) == len(images)


@pytest.mark.promise("1.6")
def test_a_changed_configuration_is_not_the_digests(tmp_path: Path) -> None:
    """Another program in an image's document is seen; what can't be read is a `HostError`."""
    image = put(tmp_path / "s", "one", cmd=("serve",))
    store, file = Store(tmp_path / "s"), image.rootfs.parent / "image.json"
    document = json.loads(file.read_bytes())
    verify(image)
    file.chmod(0o644)
    for changed in ({"cmd": ["steal"]}, {"healthcheck": {"test": ["CMD", "steal"]}}):
        file.write_text(json.dumps(document | changed))
        with pytest.raises(HostError):
            verify(store.find("one"))
    for damaged, content in ((file, "{}"), (tmp_path / "s/image-names.json", "[")):
        damaged.write_text(content)
        with pytest.raises(HostError, match="damaged"):
            store.find("one")


@pytest.mark.parametrize("part", ["rootfs.sqfs", "image.json"])
def test_an_image_of_another_store_is_taken_whole_or_not(part: str, tmp_path: Path) -> None:
    """With its names and origins; not if its bytes or its configuration are others."""
    origin = f"sha256:{'a' * 64}"
    image = put(tmp_path / "s", "one", origins=[origin], cmd=("serve",))
    copy, other = tmp_path / "t/tmp" / image.digest, Store(tmp_path / "t")
    shutil.copytree(image.rootfs.parent, copy)
    whole = (copy / part).read_bytes()
    (copy / part).chmod(0o644)
    (copy / part).write_bytes(whole.replace(b"serve", b"steal").replace(b"hsqs", b"HSQS"))
    with pytest.raises(HostError):
        other.adopt(copy, names=["one"], origins=[origin])
    assert other.list() == ()
    (copy / part).write_bytes(whole)
    taken = other.adopt(copy, names=["one"], origins=[origin])
    assert (taken.digest, taken.names, taken.origins) == (image.digest, ("one",), (origin,))
    verify(other.find(origin))


@pytest.mark.promise("1.6")
def test_an_image_of_an_earlier_store_is_read_and_keeps_its_digest(tmp_path: Path) -> None:
    """Without health checks; files are read-only, below directories to pass through."""
    image = put(tmp_path / "s", "old", user="u")
    file = image.rootfs.parent / "image.json"
    known = "version digest size_bytes env user workdir entrypoint cmd created source"
    assert set(json.loads(file.read_bytes())) == {*known.split()}
    assert image.config == ImageConfig(user="u")
    assert image.digest == "16afb3dd4b3cb36e5c436b2dac2ef0c5e549494d4afee44d2608828ee8f55a14"
    places = {image.rootfs: 0o444, file: 0o444, file.parents[0]: 0o711, file.parents[1]: 0o711}
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in places} == places


def test_what_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    """One `HostError` with a hint, for several too; nothing outside the store is looked at."""
    store = Store(tmp_path / "none")
    with pytest.raises(HostError, match="belljar setup"):
        store.find("default")
    put(tmp_path / "s", "default")
    with pytest.raises(HostError, match="docker://defualt"):
        Store(tmp_path / "s").find("defualt")
    for ref in ("../..", "/etc", "", "\x1b[2J", "a" * 10_000):
        with pytest.raises(HostError):
            Store(tmp_path / "s").find(ref)
    assert not (tmp_path / "none").exists()
    with pytest.raises(HostError) as refused:
        find_images(Store(tmp_path / "s"), ["default", "one", "two"])
    for name in ("one", "two"):
        assert f"belljar image import docker://{name}" in str(refused.value)


def test_a_name_moves_and_an_image_goes_with_its_last_name(tmp_path: Path) -> None:
    """A name names the newest; an image goes without its last name, or by its digest."""
    store = Store(tmp_path / "s")
    old, new = put(tmp_path / "s", "x"), put(tmp_path / "s", "x", b"other")
    for ref in ("x", new.digest, f"sha256:{new.digest}"):
        assert store.find(ref) == new
    assert store.find(old.digest).names == ()
    store.name(store.find("x"), "y")
    store.remove("x")
    assert store.find("y").digest == new.digest
    store.remove("y")
    store.remove(old.digest)
    assert store.list() == ()
    assert not list((tmp_path / "s/images").iterdir())
    assert not list((tmp_path / "s/tmp").iterdir())
    with pytest.raises(HostError):
        store.remove("y")
    with pytest.raises(HostError):  # two programs use one store: no name leads nowhere
        store.name(new, "b:1")
    assert store.missing("b:1") is not None


@pytest.mark.promise("1.8")
def test_a_digest_in_a_reference_is_one_that_the_image_was_imported_from(tmp_path: Path) -> None:
    """By whatever name and tag; an unknown digest is not there, and says the command."""
    known, unknown = "sha256:" + "1" * 64, "sha256:" + "2" * 64
    image = put(tmp_path / "s", "team/one:1", origins=[known])
    store = Store(tmp_path / "s")
    assert image.origins == (known,)
    for ref in (f"team/one:1@{known}", f"team/one@{known}", f"elsewhere/two:9@{known}", known):
        assert store.find(ref).digest == image.digest
    for ref in (f"team/one:1@{unknown}", f"team/one@{unknown}"):
        with pytest.raises(HostError) as refused:
            store.find(ref)
        assert f"belljar image import docker://team/one@{unknown}" in refused.value.hint
    with pytest.raises(PolicyError):
        put(tmp_path / "s", f"team/one@{unknown}", origins=[known])
    store.remove(f"team/one:1@{known}")
    assert store.list() == ()
    with pytest.raises(HostError):
        store.find(known)
