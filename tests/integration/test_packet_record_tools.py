"""The packet record of a range is opened by the tools that people have, Wireshark's reader and
tcpdump; also one in which answers were cut to their headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.fakes.pcapng import packets as read_packets
from tests.integration.conftest import Belljar

from belljar.ledger.listing import read_events

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root]
ASKED = 60
POLICY = """\
belljar: 1
risk: low
tier: container
network:
  stand_ins:
    shop:
      kind: http
      names: [shop.example]
      routes: [{path: "/{n}", body: "%s"}]
  record: {packets: 1MiB}
"""


@pytest.fixture(scope="module")
def packets(vm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a range in which more was sent than its record may keep."""
    policy = tmp_path_factory.mktemp("range") / "policy.yaml"
    policy.write_text(POLICY % ("x" * 40_000))
    belljar = Belljar(vm_home)
    fetch = [
        "curl",
        "-sS",
        "--max-time",
        "60",
        "-o",
        "/dev/null",
        f"http://shop.example/[1-{ASKED}]",
    ]
    done = belljar("exec", str(policy), "--", *fetch)
    assert done.returncode == 0, done.stderr
    run = belljar.runs()[-1]
    counters = next(
        line.data["counters"] for line in read_events(run) if line.kind == "range.destroyed"
    )
    (path,) = run.glob("ranges/*/packets.pcapng")
    assert counters["packets_not_recorded"] == 0
    found = [frame for _, frame, _ in read_packets(path.read_bytes())]
    assert sum(map(len, found)) < ASKED * 40_000 / 2
    return path


def read(program: str, *options: str, file: Path) -> list[str]:
    """The lines that the program has to say of the file."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} isn't installed: apt-get install {program}")
    done = subprocess.run(
        [program, "-n", "-r", str(file), *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cut short" not in done.stderr
    assert "truncated" not in done.stderr
    return done.stdout.splitlines()


def test_tcpdump_reads_every_packet(packets: Path) -> None:
    """As many as were kept, without a complaint."""
    assert len(read("tcpdump", file=packets)) == sum(1 for _ in read_packets(packets.read_bytes()))


def test_wireshark_reads_directions(packets: Path) -> None:
    """Of every packet: in from a cell, or out to one."""
    shown = read("tshark", "-T", "fields", "-e", "frame.packet_flags_direction", file=packets)
    expected = [direction for *_, direction in read_packets(packets.read_bytes())]
    assert [int(each, 0) for each in shown] == expected
    assert set(expected) == {1, 2}


def test_wireshark_reads_the_conversations(packets: Path) -> None:
    """Nothing malformed, no header's checksum wrong, and the requests are dissected as what they
    were."""
    # Where an answer was cut, Wireshark takes what it finds for the head of the next.
    assert read("tshark", "-Y", "_ws.malformed && !http", file=packets) == []
    checked = ("-o", "ip.check_checksum:TRUE", "-Y", "ip.checksum.status == 0")
    assert read("tshark", *checked, file=packets) == []
    uris = read(
        "tshark", "-Y", "http.request", "-T", "fields", "-e", "http.request.full_uri", file=packets
    )
    assert uris[-1] == f"http://shop.example/{ASKED}"
