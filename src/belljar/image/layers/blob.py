"""Layer blobs: decompressed with bounds, digests checked."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from belljar.image.layers import LayerError
from belljar.units import format_size

_CHUNK_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 16 << 10
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # RFC 1952, RFC 8878
# More than any packer's level takes without being told (zstd(1), `--long`).
_ZSTD_WINDOW_BYTES: Final = 128 << 20


class LayerBlob:
    """An uncompressed layer in an unnamed file."""

    def __init__(self, file: IO[bytes], size_bytes: int, diff_id: str) -> None:
        self._file = file
        self.size_bytes = size_bytes
        self.diff_id = diff_id

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes at `offset`."""
        return os.pread(self._file.fileno(), count, offset)

    def chunks(self, offset: int, size_bytes: int) -> Iterator[bytes]:
        """The bytes of a file in the layer."""
        while size_bytes:
            chunk = self.pread(min(_CHUNK_BYTES, size_bytes), offset)
            if not chunk:
                return
            yield chunk
            offset, size_bytes = offset + len(chunk), size_bytes - len(chunk)

    def close(self) -> None:
        """Give the file's space back."""
        self._file.close()


def open_layer(blob: Path, digest: str | None, *, max_bytes: int, scratch: Path) -> LayerBlob:
    """Decompress a blob (gzip, zstd or plain) whose SHA-256 must be `digest` (None: unknown).

    Raises `LayerError` beyond `max_bytes`, for a wrong digest and for broken compression.
    """
    file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - the layer owns it
    try:
        compressed, plain, size = hashlib.sha256(), hashlib.sha256(), 0
        with blob.open("rb") as source:
            for chunk in _decompressed(source, compressed):
                size += len(chunk)
                if size > max_bytes:
                    what = f"it is larger than {format_size(max_bytes)} when uncompressed"
                    raise LayerError(what, hint="--max-size allows more")
                plain.update(chunk)
                file.write(chunk)
        if digest is not None and compressed.hexdigest() != digest:
            raise LayerError("a layer's bytes are not those of its digest")
        file.flush()
        return LayerBlob(file, size, plain.hexdigest())
    except BaseException:
        file.close()
        raise


def is_plain(file: Path) -> bool:
    """Return whether a file has no known compression."""
    with file.open("rb") as opened:
        return not opened.read(4).startswith((_GZIP, _ZSTD))


def _decompressed(source: IO[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    magic = source.read(4)
    source.seek(0)
    if magic.startswith(_ZSTD):
        return _unzstd(source, digest)
    return _gunzip(source, digest) if magic.startswith(_GZIP) else _read(source, digest)


def _read(source: IO[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        yield chunk


def _gunzip(source: IO[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    """All members, at most a mebibyte at a time."""
    inflate = zlib.decompressobj(wbits=31)
    try:
        # In small pieces: each of many empty members copies what is left of its piece
        for rest in (
            chunk[at : at + _PIECE_BYTES]
            for chunk in _read(source, digest)
            for at in range(0, len(chunk), _PIECE_BYTES)
        ):
            while rest:
                if inflate.eof:
                    inflate = zlib.decompressobj(wbits=31)
                yield inflate.decompress(rest, _CHUNK_BYTES)
                rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        while not inflate.eof and (
            tail := inflate.decompress(inflate.unconsumed_tail, _CHUNK_BYTES)
        ):
            yield tail
    except zlib.error as error:
        raise LayerError(f"a layer's compression is broken: {error}") from error
    if not inflate.eof:
        raise LayerError("a layer ends in the middle of its compressed data")


def _unzstd(source: IO[bytes], digest: hashlib._Hash) -> Iterator[bytes]:
    """All frames, at most a mebibyte at a time; the window bounds the memory."""
    import zstandard  # few layers need it

    # The decompressor reads the file by itself, so its digest is taken before.
    for _ in _read(source, digest):
        pass
    source.seek(0)
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        reader = decompressor.stream_reader(source, read_across_frames=True, closefd=False)
        while chunk := reader.read(_CHUNK_BYTES):
            yield chunk
    except zstandard.ZstdError as error:
        raise LayerError(f"a layer's compression is broken: {error}") from error
