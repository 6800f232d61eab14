"""A container registry on this machine alone, for real skopeo, and a program that stands for
Docker's: the pull side, honest or not.

Source: distribution-spec v1.1, `GET /v2/<name>/manifests/<reference>` and `/blobs/<digest>`.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.images import ARCH, blob_of, config_document, sha256

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass
class Registry:
    """What it serves. `before` is called with each request's path, before it is answered."""

    address: str = ""
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _path: None

    def put(
        self,
        name: str,
        tag: str,
        layers: Sequence[bytes],
        config: Mapping[str, Any] | None = None,
        *,
        is_index: bool = False,
        is_docker: bool = False,
    ) -> tuple[str, str, str]:
        """Serve an image, under an index of two processors' or not: the digests of what the tag
        names, its manifest and its configuration."""
        kind = DOCKER_MANIFEST if is_docker else OCI_MANIFEST
        layer_type = "docker.image.rootfs.diff.tar.gzip" if is_docker else "oci.image.layer.v1.tar"
        config_type = "docker.container.image.v1+json" if is_docker else "oci.image.config.v1+json"
        document = json.dumps(config_document(layers, config)).encode()
        for content in (*layers, document):
            self.blobs[sha256(content)] = content
        manifest = {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": blob_of(f"application/vnd.{config_type}", document),
            "layers": [blob_of(f"application/vnd.{layer_type}", each) for each in layers],
        }
        inner = self._manifest(name, tag, kind, manifest)
        if not is_index:
            return inner, inner, sha256(document)
        entries = []
        for content, arch in ((b"?", "s390x"), (self.manifests[name, inner][1], ARCH)):
            platform = {"os": "linux", "architecture": arch}
            entries.append(blob_of(kind, content) | {"platform": platform})
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
        return self._manifest(name, tag, OCI_INDEX, index), inner, sha256(document)

    def _manifest(self, name: str, tag: str, kind: str, document: Mapping[str, Any]) -> str:
        content = json.dumps(document).encode()
        self.manifests[name, tag] = self.manifests[name, sha256(content)] = (kind, content)
        return sha256(content)


class _RegistryHandler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.registry.asked.append(self.path)
        self.registry.before(self.path)
        match = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", self.path)
        if self.path == "/v2/":
            _answer(self, 200, b"{}", "application/json")
        elif match and match[2] == "manifests" and (match[1], match[3]) in self.registry.manifests:
            kind, content = self.registry.manifests[match[1], match[3]]
            _answer(self, 200, content, kind)
        elif match and match[3] in self.registry.blobs:
            _answer(self, 200, self.registry.blobs[match[3]], "application/octet-stream")
        else:
            told = b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}'
            _answer(self, 404, told, "application/json")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its parent's name
        """Nothing is logged."""


def _answer(handler: BaseHTTPRequestHandler, status: int, content: bytes, kind: str) -> None:
    with suppress(OSError):  # a client that was given up is no failure here
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)


@contextmanager
def registry() -> Iterator[Registry]:
    served = Registry()
    handler = type(
        "Handler", (_RegistryHandler,), {"registry": served, "do_HEAD": _RegistryHandler.do_GET}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    served.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_DOCKER = """#!/bin/sh
here=$(dirname "$0")
for name; do :; done
name=${name#docker.io/} name=${name#library/} name=${name%:latest}
at=$here/$(printf %s "$name" | tr /:@ ___)
[ ! -e "$here/hangs-in-$1" ] || sleep 60
case $1 in
save) cat "$at.tar" > "$3" 2>/dev/null || { echo "Error: No such image: $name" >&2; exit 1; } ;;
esac
"""


@dataclass
class Docker:
    """A program `docker` in a directory: what its `save` gives for names."""

    directory: Path

    def put(self, name: str, archive: Path) -> None:
        """Have the only image of a `docker save` archive, under this name."""
        self._at(name).write_bytes(archive.read_bytes())

    def cut(self, name: str, size_bytes: int) -> None:
        os.truncate(self._at(name), size_bytes)

    def hang(self, word: str) -> None:
        (self.directory / f"hangs-in-{word}").touch()

    def _at(self, name: str) -> Path:
        return self.directory / f"{re.sub('[/:@]', '_', name.removesuffix(':latest'))}.tar"


def docker(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str = "docker") -> Docker:
    """Put a program of this name, that has no image, first in the path."""
    directory.mkdir()
    (directory / name).write_text(_DOCKER)
    (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return Docker(directory)
