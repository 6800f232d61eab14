"""Archives made to do harm: each is refused with a clear error, changes nothing in the store and
leaves nothing anywhere."""

from __future__ import annotations

import gzip
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.images import (
    BytesOf,
    Json,
    directory,
    entry,
    hard_link,
    layer,
    oci_archive,
    sha256,
    symlink,
)

from belljar.errors import BelljarError, PolicyError
from belljar.image.layers import ImportLimits, LayerError, read_entries
from belljar.image.oci import import_image
from belljar.image.store import Store
from belljar.image.tree import MergedTree

SMALL = ImportLimits(max_bytes=4 << 20, max_entries=1000, max_layers=20, timeout_s=60)


def raw(name: bytes = b"x", *, size: int = 0, kind: bytes = b"0", uid: bytes = b"") -> bytes:
    """A header by hand and no content, for what a library would not write."""
    header = bytearray(512)
    number = b"%011o\0" % size if size >= 0 else b"\xff" * 12
    parts = {0: name, 100: b"0000644\0", 108: uid or b"0000000\0", 116: b"0000000\0", 124: number}
    parts |= {136: b"00000000000\0", 156: kind, 257: b"ustar\x0000"}
    for offset, value in parts.items():
        header[offset : offset + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


END = bytes(1024)


def pax(records: bytes, then: bytes | None = None, kind: bytes = b"x") -> bytes:
    padded = records.ljust(-(-len(records) // 512) * 512, b"\0")
    return (
        raw(b"pax", size=len(records), kind=kind) + padded + (raw() + END if then is None else then)
    )


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(str(length)) + len(key) + len(value) + 3 != length:
        length = len(str(length)) + len(key) + len(value) + 3
    return str(length).encode() + b" " + key + b"=" + value + b"\n"


X = entry("x", b"x")
HOSTILE_LAYERS: dict[str, bytes] = {
    "parent-in-name": layer(entry("../../etc/cron.d/own", b"x")),
    "parent-inside-name": layer(entry("a/../../b", b"x")),
    "absolute-name": layer(entry("/etc/passwd", b"x")),
    "write-through-escaping-link": layer(symlink("out", "../../../../tmp"), entry("out/own", b"x")),
    "circle-of-links": layer(symlink("a", "b"), symlink("b", "a"), entry("a/x", b"x")),
    "below-a-file": layer(entry("file", b"x"), entry("file/below", b"x")),
    "hard-link-out": layer(hard_link("shadow", "../../../../etc/shadow")),
    "hard-link-to-directory": layer(directory("d"), hard_link("e", "d")),
    "hard-link-through-link": layer(symlink("out", "../.."), hard_link("s", "out/etc/shadow")),
    "character-device": layer(entry("dev/mem", kind=tarfile.CHRTYPE, devmajor=1, devminor=1)),
    "sparse-pax": pax(record(b"GNU.sparse.major", b"1")),
    "unknown-type": raw(kind=b"Z") + END,
    "too-long-for-the-layer": raw(size=1 << 30) + END,
    "huge-pax-header": pax(bytes(3 << 20)),
    "absurd-size-record": pax(record(b"size", b"9" * 40)),
    "huge-base-256-owner": raw(uid=b"\x80" + b"\xff" * 7) + END,
    "letters-for-a-number": raw(uid=b"12x4567\0") + END,
    "record-longer-than-header": pax(b"99999 path=x\n"),
    "record-without-newline": pax(b"9 path=xx"),
    "parent-in-pax-path": pax(record(b"path", b"../../x")),
    "zero-byte-in-pax-path": pax(record(b"path", b"a\0b")),
    "global-header": pax(record(b"path", b"../evil"), kind=b"g"),
    "attributes-without-end": pax(record(b"SCHILY.xattr.security.capability", b"v" * 70)),
    "name-too-long": layer(entry("n" * 300, b"x")),
    "too-deep": layer(entry("d/" * 300 + "x", b"x")),
    "too-deep-through-a-link": layer(
        symlink("to", "d/" * 150), entry("d/" * 150 + "x"), entry("to/" + "e/" * 150 + "x")
    ),
    "path-too-long": layer(entry("/".join(["d" * 200] * 30), b"x")),
    "wrong-checksum": layer(X)[:200] + b"!" + layer(X)[201:],
    "cut-in-header": layer(entry("a", b"x" * 512), entry("b", b"y"))[: 1024 + 100],
    "cut-in-content": layer(entry("a", b"x" * 5000))[:1024],
    "extended-header-at-end": pax(record(b"path", b"x"), b""),
    "whiteout-of-parent": layer(entry(".wh..", b"")),
    "root-as-a-pipe": raw(b"./.", kind=b"6") + END,
    "too-many-entries": layer(*(entry(f"f{n}") for n in range(1200))),
    "more-bytes-than-allowed": layer(entry("big", b"x" * (5 << 20))),
    "symlink-without-target": raw(kind=b"2") + END,
    "not-a-tar": b"this is no archive" * 100,
}


def state_of(home: Path) -> set[str]:
    """Every path of the store and of the system's temporary directory that is ours."""
    ours = {str(path) for path in home.rglob("*") if path.parent.name != "locks"}
    return ours | {str(path) for path in Path(tempfile.gettempdir()).glob("belljar-*")}


@pytest.fixture(scope="module", autouse=True)
def _own_temporary_directory() -> Iterator[None]:
    """What other tests import meanwhile is not looked at. Open to all, as the system's own is."""
    with (
        tempfile.TemporaryDirectory(prefix="hostile-") as own,
        pytest.MonkeyPatch.context() as patch,
    ):
        Path(own).chmod(0o1777)
        patch.setattr(tempfile, "tempdir", own)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one good image in it, so that there is something to damage."""
    made = tmp_path_factory.mktemp("hostile")
    good = oci_archive(made / "good.tar", [layer(entry("etc/issue", b"good"))])
    import_image(made / "store", f"oci-archive:{good}", name="victim", limits=SMALL)
    return made / "store"


def refused(
    home: Path, archive: Path, *, limits: ImportLimits = SMALL, transport: str = "oci-archive"
) -> BelljarError:
    """Import it under the name of the good image; it must be refused and change nothing."""
    before, victim = state_of(home), Store(home).find("victim")
    with pytest.raises(PolicyError) as caught:
        import_image(home, f"{transport}:{archive}", name="victim", limits=limits)
    assert state_of(home) == before
    assert Store(home).find("victim") == victim
    assert "\x1b" not in str(caught.value)
    return caught.value


@pytest.mark.promise("1.8")
@pytest.mark.parametrize("harm", HOSTILE_LAYERS)
def test_a_hostile_layer_is_refused_and_leaves_nothing(
    harm: str, home: Path, tmp_path: Path
) -> None:
    """Its image is refused with one message; store and temporary directory are as before."""
    good = layer(entry("bin/sh", b"x"))
    error = refused(home, oci_archive(tmp_path / "a.tar", [good, HOSTILE_LAYERS[harm]]))
    assert "refused" in error.what


PLACES = ["dev", "proc", "sys", "etc", "run", "tmp", "etc/passwd", "etc/group", "etc/hostname"]
PLACES += ["etc/hosts", "etc/machine-id", "etc/resolv.conf"]
ODD: dict[str, Callable[[str], bytes]] = {
    "a pipe": lambda path: layer(entry(path, kind=tarfile.FIFOTYPE)),
    "a symbolic link": lambda path: layer(symlink(path, "/elsewhere")),
    "a file": lambda path: layer(entry(path, b"x")),
    "a directory": lambda path: layer(directory(path)),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_place_of_the_start_is_what_it_must_be(kind: str, home: Path, tmp_path: Path) -> None:
    """A directory or file, links only where images usually have them; else it is refused."""
    for path in PLACES:
        fitting = {"a file"} if "/" in path else {"a directory"}
        if path in {"run", "tmp", "etc/machine-id", "etc/resolv.conf"}:
            fitting |= {"a symbolic link"}
        archive = oci_archive(tmp_path / f"{path.replace('/', '-')}.tar", [ODD[kind](path)])
        if kind in fitting:
            import_image(tmp_path / "store", f"oci-archive:{archive}", name="a", limits=SMALL)
        else:
            assert f"/{path} is {kind}" in refused(home, archive).what


def bomb(size_bytes: int) -> bytes:
    squeeze = zlib.compressobj(9, wbits=31)
    chunks = [squeeze.compress(bytes(1 << 20)) for _ in range(size_bytes >> 20)]
    return b"".join([*chunks, squeeze.flush()])


def test_a_compression_bomb_is_stopped_while_it_streams(home: Path, tmp_path: Path) -> None:
    """Zeros deflated a thousandfold are refused at the bound, not after it has been written."""
    archive = oci_archive(tmp_path / "a.tar", [b"x"], compress=lambda _plain: bomb(64 << 20))
    assert "larger than 4 MiB" in refused(home, archive).what


def test_a_bomb_around_the_whole_archive_is_stopped(home: Path, tmp_path: Path) -> None:
    """The archive itself may be compressed: it is bounded as well."""
    (tmp_path / "a.tar").write_bytes(bomb(96 << 20))
    refused(home, tmp_path / "a.tar")
    refused(home, tmp_path / "a.tar", transport="docker-archive")


ELSEWHERE = "application/vnd.oci.image.layer.nondistributable.v1.tar"
LIES: dict[str, Callable[[Json, Json], object]] = {
    "another layer": lambda _, config: config["rootfs"].update(diff_ids=[sha256(b"other")]),
    "fewer layers": lambda _, config: config["rootfs"].update(diff_ids=[]),
    "a path as digest": lambda made, _: made["layers"][0].update(digest="sha256:../../etc/passwd"),
    "a layer that is somewhere else": lambda made, _: made["layers"][0].update(
        mediaType=ELSEWHERE, urls=["https://example.invalid/layer"]
    ),
    "a climbing directory": lambda _, config: config.update(config={"WorkingDir": "../../.."}),
    "a variable that ends early": lambda _, config: config.update(config={"Env": ["A=b\0c"]}),
    "a command of no words": lambda _, config: config.update(config={"Cmd": [1, 2]}),
    "another machine": lambda _, config: config.update(architecture="s390x"),
    "too many layers": lambda made, config: (
        made.update(layers=made["layers"] * 30),
        config["rootfs"].update(diff_ids=config["rootfs"]["diff_ids"] * 30),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_manifest_or_configuration_is_refused(lie: str, home: Path, tmp_path: Path) -> None:
    """Digests, types, counts and words are checked against the bytes and their meaning."""
    tweak = LIES[lie]
    refused(home, oci_archive(tmp_path / "a.tar", [layer(X)], tweak=tweak))


def test_a_layer_under_a_wrong_digest_is_refused(home: Path, tmp_path: Path) -> None:
    """A blob that isn't what its name says is never packed."""

    def swap_layer(blobs: dict[str, bytes]) -> None:
        digest = max(blobs, key=lambda d: blobs[d].startswith(b"\x1f\x8b"))
        blobs[digest] = gzip.compress(layer(entry("other", b"x")))

    refused(home, oci_archive(tmp_path / "a.tar", [layer(X)], blobs_tweak=swap_layer))


BLOB = "blobs/sha256/" + "0" * 64
LAYOUT = entry("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
NESTED = (
    '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json",'
    '"digest":"sha256:%s","size":9}]}'
)


def leading_to(digest: str) -> bytes:
    """An archive whose index, also as the blob, names this digest."""
    index = (NESTED % digest).encode()
    return layer(LAYOUT, entry("index.json", index), entry(BLOB, index))


@pytest.mark.parametrize(
    "archive",
    [
        *(layer(entry(name, b"x"), entry(BLOB, b"x")) for name in ("../out", "/tmp/belljar-out")),
        layer(symlink("blobs", "/etc"), entry(BLOB, b"x")),
        *map(leading_to, ("0" * 64, "../../index.json")),
    ],
    ids=["a-climbing-name", "an-absolute-name", "a-link", "a-circle", "nowhere"],
)
def test_an_archive_that_is_no_honest_layout_is_refused(
    archive: bytes, home: Path, tmp_path: Path
) -> None:
    """No name of it becomes a path; circles of indexes end in an error, in bounded time."""
    (tmp_path / "a.tar").write_bytes(archive)
    refused(home, tmp_path / "a.tar")


@settings(max_examples=300)
@given(st.binary(max_size=4096))
def test_any_bytes_are_read_to_entries_or_refused(noise: bytes) -> None:
    """On every input it ends with entries whose names stay inside, or with `LayerError`."""
    check_reader(noise)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=12), st.booleans())
def test_a_damaged_layer_is_read_or_refused(
    damage: list[tuple[int, int]], fix_checksums: bool
) -> None:
    """Also with checksums made right again: never misread outside its bounds."""
    links = (symlink("d/l", "f"), hard_link("h", "d/f"))
    content = bytearray(
        layer(directory("d"), entry("d/f", b"x" * 700), *links, entry("l" * 120, b"y"))
    )
    for offset, value in damage:
        content[offset % len(content)] = value
    if fix_checksums:
        for start in range(0, len(content) - 511, 512):
            content[start + 148 : start + 156] = b" " * 8
            content[start + 148 : start + 156] = b"%06o\0 " % sum(content[start : start + 512])
    check_reader(bytes(content))


WORDS = st.sampled_from(["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq"])
names = st.lists(WORDS, min_size=1, max_size=5).map("/".join)
entries = st.one_of(
    st.builds(lambda n: entry(n, b"x"), names),
    st.builds(directory, names),
    *(st.builds(link, names, names.filter(bool)) for link in (symlink, hard_link)),
)


@settings(max_examples=150)
@given(st.lists(entries.filter(lambda e: e[0].name.strip("/.") != ""), max_size=20))
def test_a_merged_tree_never_has_a_name_that_leads_out(
    made: list[tuple[tarfile.TarInfo, bytes]],
) -> None:
    """Every emitted path stays inside, and parents are directories before it."""
    content, tree = layer(*made), MergedTree(SMALL)
    tree.begin_layer()
    try:
        for found in read_entries(BytesOf(content).pread, len(content)):
            tree.apply(found)
    except LayerError:
        return
    directories: set[str] = {""}
    files: set[str] = set()
    for info, _ in tree.emit():
        parent, _, name = info.name.rpartition("/")
        assert parent in directories
        assert name not in {"", ".", ".."}
        assert info.name not in directories | files
        (directories if info.isdir() else files).add(info.name)
        assert not info.islnk() or info.linkname in files


def check_reader(content: bytes) -> None:
    """Read all entries; check that each lies inside the layer."""
    try:
        for found in read_entries(BytesOf(content).pread, len(content)):
            assert ".." not in [part.decode("latin-1") for part in found.path]
            assert 0 <= found.size_bytes <= len(content)
            assert found.offset + found.size_bytes <= len(content)
            assert 0 <= found.mode <= 0o7777
    except LayerError:
        return


@pytest.mark.promise("1.8")
def test_an_interrupted_import_leaves_nothing(home: Path, tmp_path: Path) -> None:
    """Ctrl-C at any stage: the store is as before."""
    archive = oci_archive(tmp_path / "a.tar", [layer(X)])
    for stage in ("fetching", "reading layer 1 of 1", "packing"):
        before = state_of(home)

        def interrupt(line: str, stage: str = stage) -> None:
            if line == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_image(home, f"oci-archive:{archive}", name="x", report=interrupt)
        assert state_of(home) == before
