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
    Json,
    directory,
    entry,
    hard_link,
    layer,
    oci_archive,
    sha256,
    symlink,
)

from belljar.errors import BelljarError, HostError, PolicyError
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.layers.headers import read_entries
from belljar.image.layers.tree import MergedTree
from belljar.image.oci import import_image
from belljar.image.store import Store

SMALL = ImportLimits(max_bytes=4 << 20, max_entries=1000, max_layers=20, timeout_s=60)


def device(kind: bytes) -> bytes:
    """A layer with a device node."""
    return layer(entry("dev/mem", kind=kind, devmajor=1, devminor=1))


def raw(name: bytes = b"x", *, size: int = 0, kind: bytes = b"0", **fields: bytes) -> bytes:
    """A header by hand, for what a library would not write."""
    header = bytearray(512)
    parts = {0: name, 100: b"0000644\0", 136: b"00000000000\0", 257: b"ustar\x0000"}
    parts |= dict.fromkeys((108, 116), b"0000000\0")
    for offset, value in parts.items():
        header[offset : offset + len(value)] = value
    header[124:136] = b"%011o\0" % size
    header[156:157] = kind
    for field, value in fields.items():
        start = {"size_field": 124, "uid_field": 108}[field]
        header[start : start + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def pax(records: bytes, then: bytes) -> bytes:
    """Extended-header records before an entry."""
    return (
        raw(b"pax", size=len(records), kind=b"x")
        + records.ljust(-(-len(records) // 512) * 512, b"\0")
        + then
    )


def record(key: bytes, value: bytes) -> bytes:
    """One record with its right length."""
    length = len(key) + len(value) + 3
    while len(str(length)) + len(key) + len(value) + 3 != length:
        length = len(str(length)) + len(key) + len(value) + 3
    return str(length).encode() + b" " + key + b"=" + value + b"\n"


HOSTILE_LAYERS: dict[str, bytes] = {
    "parent-in-name": layer(entry("../../etc/cron.d/own", b"x")),
    "parent-inside-name": layer(entry("a/../../b", b"x")),
    "absolute-name": layer(entry("/etc/passwd", b"x")),
    "absolute-after-dot": layer(entry(".//../x", b"x")),
    "write-through-escaping-link": layer(
        symlink("out", "../../../../tmp"), entry("out/owned", b"x")
    ),
    "circle-of-links": layer(symlink("a", "b"), symlink("b", "a"), entry("a/x", b"x")),
    "link-to-itself": layer(symlink("a", "a/a"), entry("a/x", b"x")),
    "below-a-file": layer(entry("file", b"x"), entry("file/below", b"x")),
    "hard-link-out": layer(hard_link("shadow", "../../../../etc/shadow")),
    "hard-link-to-host": layer(hard_link("shadow", "/etc/shadow")),
    "hard-link-to-directory": layer(directory("d"), hard_link("e", "d")),
    "hard-link-through-escaping-link": layer(
        symlink("out", "../.."), hard_link("shadow", "out/etc/shadow")
    ),
    "character-device": device(tarfile.CHRTYPE),
    "block-device": device(tarfile.BLKTYPE),
    "sparse-type": raw(kind=b"S") + bytes(1024),
    "sparse-pax": pax(record(b"GNU.sparse.major", b"1"), raw() + bytes(1024)),
    "unknown-type": raw(kind=b"Z") + bytes(1024),
    "too-long-for-the-layer": raw(size=1 << 30) + bytes(1024),
    "huge-pax-header": raw(size=3 << 20, kind=b"x") + bytes(3 << 20) + raw() + bytes(1024),
    "huge-long-name": raw(size=2 << 20, kind=b"L") + bytes(2 << 20) + raw() + bytes(1024),
    "absurd-size-record": pax(record(b"size", b"9" * 40), raw() + bytes(1024)),
    "negative-size": raw(size_field=b"\xff" * 12) + bytes(1024),
    "huge-base-256-owner": raw(uid_field=b"\x80" + b"\xff" * 7) + bytes(1024),
    "letters-for-a-number": raw(uid_field=b"12x4567\0") + bytes(1024),
    "record-longer-than-header": pax(b"99999 path=x\n", raw() + bytes(1024)),
    "record-of-length-zero": pax(b"0 path=x\n", raw() + bytes(1024)),
    "record-without-newline": pax(b"9 path=xx", raw() + bytes(1024)),
    "parent-in-pax-path": pax(record(b"path", b"../../x"), raw() + bytes(1024)),
    "zero-byte-in-pax-path": pax(record(b"path", b"a\0b"), raw() + bytes(1024)),
    "global-header": (
        raw(size=17, kind=b"g")
        + record(b"path", b"../evil").ljust(512, b"\0")
        + raw()
        + bytes(1024)
    ),
    "attributes-without-end": pax(
        record(b"SCHILY.xattr.user.a", b"v" * (70 << 10)), raw() + bytes(1024)
    ),
    "name-too-long": layer(entry("n" * 300, b"x")),
    "too-deep": layer(entry("/".join("d" * 1 for _ in range(300)) + "/x", b"x")),
    "too-deep-through-a-link": layer(
        symlink("to", "d/" * 150), entry("d/" * 150 + "x"), entry("to/" + "e/" * 150 + "x")
    ),
    "path-too-long": layer(entry("/".join(["d" * 200] * 30), b"x")),
    "wrong-checksum": layer(entry("a", b"x"))[:200] + b"!" + layer(entry("a", b"x"))[201:],
    "cut-in-header": layer(entry("a", b"x" * 512), entry("b", b"y"))[: 1024 + 100],
    "cut-in-content": layer(entry("a", b"x" * 5000))[:1024],
    "extended-header-at-end": pax(record(b"path", b"x"), b""),
    "whiteout-of-parent": layer(entry(".wh..", b"")),
    "whiteout-of-grandparent": layer(entry("a/.wh...", b"")),
    "root-as-a-pipe": raw(b"./.", kind=b"6") + bytes(1024),
    "too-many-entries": layer(*(entry(f"f{n}") for n in range(1200))),
    "more-bytes-than-allowed": layer(entry("big", b"x" * (5 << 20))),
    "symlink-without-target": raw(kind=b"2") + bytes(1024),
    "not-a-tar": b"this is no archive" * 100,
}


def state_of(home: Path) -> set[str]:
    """Every path of the store and of the system's temporary directory that is ours."""
    ours = {str(path) for path in home.rglob("*") if path.parent.name != "locks"}
    return ours | {str(path) for path in Path(tempfile.gettempdir()).glob("belljar-*")}


@pytest.fixture(scope="module", autouse=True)
def _own_temporary_directory() -> Iterator[None]:
    """What other tests import meanwhile is not looked at. Open to all, as the system's own is."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="hostile-") as own:
        Path(own).chmod(0o1777)
        tempfile.tempdir = own
        try:
            yield
        finally:
            tempfile.tempdir = before


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


PLACES = (
    *("dev", "proc", "sys", "etc", "run", "tmp", "etc/passwd", "etc/group", "etc/hostname"),
    *("etc/hosts", "etc/machine-id", "etc/resolv.conf"),
)
ODD: dict[str, Callable[[str], bytes]] = {
    "a pipe": lambda path: layer(entry(path, kind=tarfile.FIFOTYPE)),
    "a symbolic link": lambda path: layer(symlink(path, "/elsewhere")),
    "a file": lambda path: layer(entry(path, b"x")),
    "a directory": lambda path: layer(directory(path)),
}


@pytest.mark.parametrize("path", PLACES)
def test_a_place_of_the_start_is_what_it_must_be(path: str, home: Path, tmp_path: Path) -> None:
    """What a cell mounts over, reads or writes before a program of the image runs is a directory or
    a regular file; links only where images usually have them. Else the image is refused, by name."""
    fitting = {"a file"} if "/" in path else {"a directory"}
    if path in {"run", "tmp", "etc/machine-id", "etc/resolv.conf"}:
        fitting |= {"a symbolic link"}
    for kind, odd in ODD.items():
        archive = oci_archive(tmp_path / "a.tar", [odd(path)])
        if kind in fitting:
            import_image(tmp_path / "store", f"oci-archive:{archive}", limits=SMALL)
        else:
            assert f"/{path} is {kind}" in refused(home, archive).what


def bomb(size_bytes: int) -> bytes:
    """Zeros, deflated a thousandfold."""
    squeeze = zlib.compressobj(9, wbits=31)
    chunks = [squeeze.compress(bytes(1 << 20)) for _ in range(size_bytes >> 20)]
    return b"".join([*chunks, squeeze.flush()])


def test_a_compression_bomb_is_stopped_while_it_streams(home: Path, tmp_path: Path) -> None:
    """A gigabyte of zeros in a megabyte is refused at the bound, not after it has been written."""
    archive = oci_archive(tmp_path / "a.tar", [b"x"], compress=lambda _plain: bomb(1 << 30))
    assert "larger than 4 MiB" in refused(home, archive).what


def test_a_bomb_around_the_whole_archive_is_stopped(home: Path, tmp_path: Path) -> None:
    """The archive itself may be compressed: it is bounded as well."""
    (tmp_path / "a.tar").write_bytes(bomb(256 << 20))
    refused(home, tmp_path / "a.tar")
    refused(home, tmp_path / "a.tar", transport="docker-archive")


Tweak = Callable[[Json, Json], object]
LIES: dict[str, Tweak] = {
    "another digest of the plain layer": lambda _, config: config["rootfs"].update(
        diff_ids=[sha256(b"other")]
    ),
    "fewer layers than the manifest": lambda _, config: config["rootfs"].update(diff_ids=[]),
    "a digest that is a path": lambda manifest, _: manifest["layers"][0].update(
        digest="sha256:../../../../../../etc/passwd"
    ),
    "a layer that is elsewhere": lambda manifest, _: manifest["layers"][0].update(
        mediaType="application/vnd.oci.image.layer.nondistributable.v1.tar",
        urls=["https://example.invalid/layer"],
    ),
    "a directory that climbs": lambda _, config: config.update(config={"WorkingDir": "../../.."}),
    "a variable that ends early": lambda _, config: config.update(config={"Env": ["A=b\0c"]}),
    "a command of numbers": lambda _, config: config.update(config={"Cmd": [1, 2]}),
    "another architecture": lambda _, config: config.update(architecture="s390x"),
    "more layers than allowed": lambda manifest, config: (
        manifest.update(layers=manifest["layers"] * 30),
        config["rootfs"].update(diff_ids=config["rootfs"]["diff_ids"] * 30),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_manifest_or_configuration_is_refused(lie: str, home: Path, tmp_path: Path) -> None:
    """Digests, types, counts and words are checked against the bytes and their meaning."""

    def tweak(manifest: Json, config: Json) -> None:
        LIES[lie](manifest, config)

    refused(home, oci_archive(tmp_path / "a.tar", [layer(entry("x", b"x"))], tweak=tweak))


def test_a_layer_under_a_wrong_digest_is_refused(home: Path, tmp_path: Path) -> None:
    """A blob that isn't what its name says is never packed."""

    def swap(blobs: dict[str, bytes]) -> None:
        digest = max(blobs, key=lambda d: blobs[d].startswith(b"\x1f\x8b"))
        blobs[digest] = gzip.compress(layer(entry("other", b"x")))

    refused(home, oci_archive(tmp_path / "a.tar", [layer(entry("x", b"x"))], blobs_tweak=swap))


def test_an_archive_with_names_outside_a_layout_writes_none_of_them(
    home: Path, tmp_path: Path
) -> None:
    """Entries that climb out, or are links: no name of it becomes a path."""
    for number, bad in enumerate(
        [entry("../escaped", b"x"), entry("/tmp/belljar-escaped", b"x"), symlink("blobs", "/etc")]
    ):
        archive = tmp_path / f"{number}.tar"
        archive.write_bytes(layer(bad, entry("blobs/sha256/" + "0" * 64, b"x")))
        refused(home, archive)


def test_an_index_that_names_itself_is_refused(home: Path, tmp_path: Path) -> None:
    """Manifests and indexes that lead in circles or nowhere end in an error, in bounded time."""
    index = b'{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:%s","size":9}]}'
    for digest in (b"0" * 64, b"../../index.json"):
        blob = index % digest
        files = [
            entry("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
            entry("index.json", blob),
            entry("blobs/sha256/" + "0" * 64, blob),
        ]
        (tmp_path / "a.tar").write_bytes(layer(*files))
        refused(home, tmp_path / "a.tar")


def test_a_symlink_in_a_layout_directory_reads_nothing_of_the_host(
    home: Path, tmp_path: Path
) -> None:
    """A layout directory whose blob is a link to a host file is refused."""
    layout = tmp_path / "layout"
    (layout / "blobs/sha256").mkdir(parents=True)
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (layout / "index.json").symlink_to("/etc/passwd")
    refused(home, layout, transport="oci")


@settings(max_examples=300)
@given(st.binary(max_size=4096))
def test_any_bytes_are_read_to_entries_or_refused(noise: bytes) -> None:
    """On every input it ends with entries whose names stay inside, or a `LayerError`."""
    check_reader(noise)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=12), st.booleans())
def test_a_damaged_layer_is_read_or_refused(
    damage: list[tuple[int, int]], fix_checksums: bool
) -> None:
    """Some bytes changed, checksums right or not: never misread outside its bounds."""
    made = (directory("d"), entry("d/f", b"x" * 700), symlink("d/l", "f"), hard_link("h", "d/f"))
    content = bytearray(layer(*made, entry("l" * 120, b"y")))
    for offset, value in damage:
        content[offset % len(content)] = value
    if fix_checksums:
        for start in range(0, len(content) - 511, 512):
            content[start + 148 : start + 156] = b" " * 8
            content[start + 148 : start + 156] = b"%06o\0 " % sum(content[start : start + 512])
    check_reader(bytes(content))


names = st.lists(
    st.sampled_from(["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq"]), min_size=1, max_size=5
).map("/".join)
entries = st.one_of(
    st.builds(lambda n: entry(n, b"x"), names),
    st.builds(directory, names),
    st.builds(symlink, names, names.filter(bool)),
    st.builds(hard_link, names, names.filter(bool)),
)


@settings(max_examples=500)
@given(st.lists(entries.filter(lambda e: e[0].name.strip("/.") != ""), max_size=20))
def test_a_merged_tree_never_has_a_name_that_leads_out(
    made: list[tuple[tarfile.TarInfo, bytes]],
) -> None:
    """Every emitted path stays inside, and parents are directories before it."""
    content, tree = layer(*made), MergedTree(SMALL)
    tree.begin_layer()
    try:
        for found in read_entries(Bytes(content), len(content)):
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


class Bytes:
    """Bytes as a layer."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes at `offset`, never more than a header or its bound at once."""
        assert count <= 1 << 20
        return self._content[offset : offset + count]


def check_reader(content: bytes) -> None:
    """Read all entries; check that each lies inside the layer."""
    try:
        for found in read_entries(Bytes(content), len(content)):
            assert ".." not in [part.decode("latin-1") for part in found.path]
            assert 0 <= found.size_bytes <= len(content)
            assert found.offset + found.size_bytes <= len(content)
            assert 0 <= found.mode <= 0o7777
    except LayerError:
        return


def test_no_space_while_packing_is_the_hosts_fault(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk ends in a `HostError` that says where, and leaves nothing."""
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 1 << 20}))
    before = state_of(home)
    archive = oci_archive(tmp_path / "a.tar", [layer(entry("x", b"x"))])
    with pytest.raises(HostError, match="is free"):
        import_image(home, f"oci-archive:{archive}", name="x")
    assert state_of(home) == before


@pytest.mark.promise("1.8")
def test_an_interrupted_import_leaves_nothing(home: Path, tmp_path: Path) -> None:
    """Ctrl-C at any stage: the store is as before."""
    archive = oci_archive(tmp_path / "a.tar", [layer(entry("x", b"x"))])
    for stage in ("fetching", "reading layer 1 of 1", "packing"):
        before = state_of(home)

        def interrupt(line: str, stage: str = stage) -> None:
            if line == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_image(home, f"oci-archive:{archive}", name="x", report=interrupt)
        assert state_of(home) == before
