"""The packet record of a range is opened by the tools that people have, Wireshark's reader and
tcpdump; also one in which answers were cut to their headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.fakes.pcapng import packets
from tests.integration.conftest import Belljar

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root]
ASKED = 60
POLICY = """\
belljar: 1
risk: low
tier: container
network:
  stand_ins: {shop: {kind: http, names: [shop.example], routes: [{path: "/{n}", body: "%s"}]}}
  record: {packets: 1MiB}
"""


def test_the_usual_tools_read_a_record(belljar: Belljar, tmp_path: Path) -> None:
    """Of a range in which more was sent than its record may keep."""
    (tmp_path / "policy.yaml").write_text(POLICY % ("x" * 40_000))
    fetch = ("curl", "-sS", "-m", "300", "-o", "/dev/null", f"http://shop.example/[1-{ASKED}]")
    done = belljar("exec", str(tmp_path / "policy.yaml"), "--", *fetch)
    assert done.returncode == 0, done.stderr
    run = belljar.runs()[-1]
    (end,) = (each["data"] for each in belljar.events(run) if each["kind"] == "range.destroyed")
    assert end["counters"]["packets_not_recorded"] == 0
    (path,) = run.glob("ranges/*/packets.pcapng")
    kept = list(packets(path.read_bytes()))
    assert sum(len(frame) for _, frame, _ in kept) < ASKED * 40_000 / 2

    def read(program: str, *options: str) -> list[str]:
        if shutil.which(program) is None:
            pytest.skip(f"{program} isn't installed: apt-get install {program}")
        argv = [program, "-n", "-r", str(path), *options]
        read = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
        assert not any(word in read.stderr for word in ("cut short", "truncated"))
        return read.stdout.splitlines()

    assert len(read("tcpdump")) == len(kept)
    fields = ("-T", "fields", "-e", "frame.packet_flags_direction")
    directions = [int(each, 0) for each in read("tshark", *fields)]
    assert directions == [way for *_, way in kept]
    assert set(directions) == {1, 2}
    # Where an answer was cut, Wireshark takes what it finds for the head of the next.
    assert read("tshark", "-Y", "_ws.malformed && !http") == []
    checked = ("-o", "ip.check_checksum:TRUE", "-Y", "ip.checksum.status == 0")
    assert read("tshark", *checked) == []
    uris = read("tshark", "-Y", "http.request", "-T", "fields", "-e", "http.request.full_uri")
    assert uris[-1] == f"http://shop.example/{ASKED}"
