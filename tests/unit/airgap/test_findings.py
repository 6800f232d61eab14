"""What counts as a way beyond this host, decided without one."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.fakes.recorder import MemoryRecorder

from belljar.airgap import AirGapFinding, State, is_air_gapped, look, seen, vsock_seen
from belljar.cell.air_gap import changes_in, held
from belljar.events import Kind
from belljar.network.supervisor.netlink import Link

LOOPBACK = Link(index=1, name="lo", is_up=True, is_loopback=True, has_carrier=True)
ETHERNET = Link(index=2, name="eth0", is_up=True, has_carrier=True)
UP, CARRIER, LOOP = 0x1, 0x1_0000, 0x8


def finding(state: State) -> AirGapFinding:
    return AirGapFinding(name="a way", state=state, how="looked", evidence="")


@pytest.mark.promise("1.10")
@pytest.mark.parametrize("state", [State.PRESENT, State.UNKNOWN])
def test_one_way_that_is_not_absent_is_no_air_gap(state: State) -> None:
    """Only findings that are all absent make an air gap; none at all do not."""
    absent = finding(State.ABSENT)
    assert is_air_gapped([absent, absent])
    assert not is_air_gapped([absent, finding(state)])
    assert not is_air_gapped([])


@pytest.mark.parametrize(
    ("link", "state"),
    [
        (LOOPBACK, State.ABSENT),
        (ETHERNET, State.PRESENT),
        (Link(index=2, name="eth0", is_up=False, has_carrier=True), State.ABSENT),
        (Link(index=2, name="eth0", is_up=True), State.UNKNOWN),
        (Link(index=2, name="d0", is_up=True, kind="dummy", has_carrier=True), State.ABSENT),
        (Link(index=2, name="v0", is_up=True, kind="veth", has_carrier=True), State.PRESENT),
    ],
)
def test_an_interface_is_judged_by_what_can_leave_by_it(link: Link, state: State) -> None:
    """Loopback, sinks and what is down are absent; without a carrier, a cable is enough."""
    assert seen(link)[0] is state


@pytest.mark.parametrize(
    ("number", "state"),
    [(0xFFFF_FFFF, State.ABSENT), (1, State.ABSENT), (2, State.ABSENT), (3, State.PRESENT)],
)
def test_a_vsock_leads_out_of_a_guest_alone(number: int, state: State) -> None:
    """No address, loopback's and the hypervisor's lead nowhere; any other is a guest's."""
    assert vsock_seen(number)[0] is state


def message(flags: int, name: bytes = b"eth0\0") -> bytes:
    text = struct.pack("=HH", 4 + len(name), 3) + name + bytes(-len(name) % 4)
    body = struct.pack("=BxHiII", 0, 1, 7, flags, 0) + text
    return struct.pack("=IHHII", 16 + len(body), 16, 0, 0, 0) + body


def test_the_watch_reports_what_comes_up_and_nothing_else() -> None:
    """Of several messages, each link that is up beyond loopback is a change."""
    down, up, loop = message(0), message(UP | CARRIER), message(UP | CARRIER | LOOP, b"lo\0")
    assert list(changes_in(down + loop)) == []
    assert len(list(changes_in(loop + up + down + up))) == 2
    assert list(changes_in(up[:-3])) == []


def host(root: Path) -> Path:
    """A host with nothing, as /sys and /proc show it."""
    for name in ("sys/class", "sys/block", "proc/net", "proc/self"):
        (root / name).mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/vda rw\n")
    return root


def put(root: Path, path: str, text: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


HEAD = "  sl  local_address rem_address st\n"
MOUNT = "2 1 0:40 / /data rw - {} somewhere rw\n"
RADIO, NVME, DISKS = "sys/class/rfkill/rfkill0", "sys/class/nvme/nvme0", "network block devices"
CASES: list[tuple[str, State, dict[str, str]]] = [
    ("radios", State.PRESENT, {f"{RADIO}/type": "wlan"}),
    ("radios", State.ABSENT, {f"{RADIO}/soft": "1", "sys/class/ieee80211/phy0/rfkill0/soft": "1"}),
    ("modems", State.PRESENT, {"sys/class/wwan/wwan0/x": ""}),
    ("modems", State.UNKNOWN, {"sys/class/tty/ttyUSB0/x": ""}),
    ("USB network", State.PRESENT, {"sys/class/udc/dummy_udc.0/function": "configfs-gadget.g1\n"}),
    ("USB network", State.PRESENT, {"sys/class/net/usb0/device/uevent": "DEVTYPE=usb_interface\n"}),
    (DISKS, State.PRESENT, {"sys/block/nbd0/pid": "7"}),
    (DISKS, State.ABSENT, {f"{NVME}/transport": "pcie"}),
    *(
        ("sockets", state, {"proc/net/tcp": f"{HEAD} 0: {line}\n"})
        for state, line in (
            (State.PRESENT, "020200C0:9C40 0101A8C0:01BB 01"),
            (State.ABSENT, "0100007F:9C40 0100007F:01BB 01"),
            (State.ABSENT, "00000000:0016 00000000:0000 0A"),
        )
    ),
    *(
        ("network file systems", state, {"proc/self/mountinfo": MOUNT.format(kind)})
        for state, kind in ((State.PRESENT, "nfs4"), (State.UNKNOWN, "fuse.mystery"))
    ),
    ("time synchronisation", State.PRESENT, {"proc/77/comm": "chronyd\n"}),
]


@pytest.mark.parametrize(("name", "state", "files"), CASES)
def test_what_a_host_has_is_seen(
    name: str, state: State, files: dict[str, str], tmp_path: Path
) -> None:
    """Each thing that leads beyond a host changes its own finding and no other."""
    root = host(tmp_path)
    assert is_air_gapped(look(root))
    for path, text in files.items():
        put(root, path, text)
    found = {each.name: each.state for each in look(root)}
    assert found.pop(name) is state
    assert set(found.values()) == {State.ABSENT}


def test_a_place_that_can_not_be_read_can_not_be_told(tmp_path: Path) -> None:
    """The rest is still looked at."""
    root = host(tmp_path)
    (root / "sys/class/rfkill").symlink_to("rfkill")
    (root / "sys/class/udc/usb0/function").mkdir(parents=True)
    states = {each.name: each.state for each in look(root)}
    assert states.pop("radios") is State.UNKNOWN
    assert states.pop("USB network") is State.UNKNOWN
    assert set(states.values()) == {State.ABSENT}


def test_a_last_check_that_fails_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on to be judged, and is void: a change is on record, and no end."""
    answers: list[object] = [(finding(State.ABSENT),), OSError("no descriptors")]

    def check() -> object:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("belljar.cell.air_gap.check_air_gap", check)
    recorder = MemoryRecorder()
    with held(recorder) as has_changed:
        assert not has_changed()
    kinds = [event.kind for event in recorder.events]
    assert kinds == [Kind.AIR_GAP_CHECKED, Kind.AIR_GAP_CHANGED]
