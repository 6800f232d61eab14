"""What every test has: both event loops, a store of its own, its turn on the machine, and a check
that nothing is left behind.

Skips are never silent: the closing summary names each with its reason (`-ra` in pyproject). A test
that hangs is ended with its process after ten minutes (`faulthandler_timeout` there): pytest-xdist
reports it as failed and goes on in another process.
"""

from __future__ import annotations

import gc
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest
import sniffio
from tests.machine import (
    Templates,
    control_groups,
    link_or_copy,
    locked,
    parted,
    shared_folder,
    templates_of,
    turn,
)

_LAST_MODULE = pytest.StashKey[Path]()
# The longest files first, by their seconds in a run of all, so that no process ends long after the
# others. What isn't listed comes after them, in its usual order.
LONGEST_FIRST = (
    "tests/integration/test_fleet.py",  # 110
    "tests/integration/test_bundle.py",  # 100
    "tests/integration/test_contract_as_user.py",  # 120
    "tests/integration/test_service_programs.py",  # 110
    "tests/integration/test_inspect_run.py",  # 100
    "tests/contract/test_limits.py",
    "tests/integration/test_image_build.py",  # 90
    "tests/integration/test_microvm.py",
    "tests/integration/test_harbor.py",  # 80
    "tests/integration/test_model_cell.py",
    "tests/security/test_end_probes.py",  # 70
    "tests/security/test_escape_attempts.py",
    "tests/integration/test_ordinary_user.py",
    "tests/integration/test_fleet_slurm.py",  # 60
    "tests/contract",
    "tests/integration",
    "tests/security",
)

_SESSION = "BELLJAR_TEST_SESSION"
"""Set for all that this process's tests start."""
_GRACE_S = 10
"""For what has been told to end."""
_COMMENT = "a run of the tests of Belljar"

# No test depends on how fast the machine is. The same examples each time, so that a change is
# judged by what it changed; `--thorough` looks for new ones.
for _name, _more in (("belljar", {"derandomize": True}), ("thorough", {"max_examples": 1000})):
    hypothesis.settings.register_profile(
        _name,
        parent=hypothesis.settings(),
        deadline=None,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.function_scoped_fixture,
        ],
        **_more,
    )
hypothesis.settings.load_profile("belljar")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        action="store_true",
        help="also what is marked so: the same properties in more places",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is read. A shell starts background jobs with SIGINT ignored: what tests start
    would inherit that, and tests send it. What tests make is for other users to read, whatever this
    one's umask is.
    """
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("thorough"):
        hypothesis.settings.load_profile("thorough")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are named by how many they are: packed ones hold the time of their packing, and the
    suite's processes must agree on every name."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thorough tests run only when asked for, all or one by name. Several processes begin with the
    longest files. Tests that need root are skipped, aloud, without it."""
    for item in items:
        if _is_thorough_here(item):
            item.add_marker("thorough")
    if not (config.getoption("thorough") or any("::" in word for word in config.args)):
        items[:], left_out = parted(items, lambda item: item.get_closest_marker("thorough") is None)
        config.hook.pytest_deselected(items=left_out)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_rank)
    if os.geteuid() == 0:
        return
    skip = pytest.mark.skip(reason="needs root")
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no collection of garbage needs to look through it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.scheduling import ByFile

    return ByFile(config, log)


def pytest_sessionstart() -> None:
    """Compiled files are kept even where Python is told to keep none: the many programs that tests
    start would each compile all they import, and those of Inspect take a minute."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _is_thorough_here(item: pytest.Item) -> bool:
    """Whether one of its parameters (a tier, a user, an event loop) is one with which it is marked
    as thorough."""
    places = {tier for mark in item.iter_markers("thorough_in") for tier in mark.args}
    params = getattr(getattr(item, "callspec", None), "params", {})
    return any(str(value).partition("-")[0] in places for value in params.values())


def _rank(item: pytest.Item) -> int:
    """By place in the list. What needs the machine alone comes last of all: while it waits for what
    runs, nothing else begins, and at the end all that runs is short."""
    if item.get_closest_marker("alone"):
        return len(LONGEST_FIRST) + 1
    places = (rank for rank, place in enumerate(LONGEST_FIRST) if item.nodeid.startswith(place))
    return next(places, len(LONGEST_FIRST))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Each test has its turn on the machine, those marked `alone` without any other."""
    base = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    with turn(shared_folder(base), alone=item.get_closest_marker("alone") is not None):
        said = yield
        templates_of(item.config, base).exchange()
    return said


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No event loop outlives the module that asked for one: anyio's plugin would run every later
    test in it, whatever loop that test names."""
    previous, item.config.stash[_LAST_MODULE] = (
        item.config.stash.get(_LAST_MODULE, item.path),
        item.path,
    )
    loop = sniffio.current_async_library_cvar.get()
    if loop is not None and previous != item.path:
        pytest.fail(f"a fixture of {previous.name} still holds {loop}'s event loop", pytrace=False)


@pytest.fixture(scope="session")
def prepared_home() -> Path:
    """The store that `belljar setup` filled: the guest kernel and the default image. Tests read
    it."""
    from belljar.store.home import belljar_home

    home = belljar_home()
    if not (home / "kernel-current").exists() or not (home / "image-names.json").exists():
        pytest.fail(
            f"no prepared store in {home}: run `belljar setup` first (scripts/test does)",
            pytrace=False,
        )
    return home


@pytest.fixture(scope="session")
def templates(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """What was made in one store and serves others too."""
    return templates_of(pytestconfig, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def vm_home(
    prepared_home: Path, tmp_path_factory: pytest.TempPathFactory, templates: Templates
) -> Iterator[Path]:
    """A store of this process's own, with the prepared images and kernel linked in, and shared
    templates; runs and journal start empty."""
    home = copy_store(prepared_home, tmp_path_factory.mktemp("home") / "store")
    with templates.serving(home), _fork_server(home):
        yield home


@contextmanager
def _fork_server(home: Path) -> Iterator[None]:
    """The parent of all gateways of ranges that this process opens there, as in a run: it takes
    half a second to start. None in a copy of the tests without those of ranges."""
    try:
        from tests.integration.remains import SERVERS_OF_TESTS

        from belljar.network.owner.processes import started_fork_server
    except ModuleNotFoundError:
        yield
        return
    with started_fork_server(home) as server:
        if server.process is not None:
            SERVERS_OF_TESTS.add(server.process.pid)
        yield


def copy_store(source: Path, target: Path) -> Path:
    """Copy images and kernels (hard links where the file system allows), nothing else."""
    target.mkdir(mode=0o711, parents=True)
    for name in ("images", "kernels"):
        shutil.copytree(source / name, target / name, copy_function=link_or_copy)
    for name in ("image-names.json", "kernel-current"):
        if (source / name).is_symlink():
            (target / name).symlink_to((source / name).readlink())
        else:
            shutil.copy2(source / name, target / name)
    return target


@pytest.fixture
def home(vm_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BELLJAR_HOME", str(vm_home))
    return vm_home


def _cmdline(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: str) -> str:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return "0"


def _environment(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return b""


def _ours(pid: str, base: bytes) -> bool:
    """Whether a process, or one it comes from, was started with a path of this session (a VMM's own
    command line names none), or with its environment."""
    if b"%b=%b" % (_SESSION.encode(), base) in _environment(pid).split(b"\0"):
        return True
    while pid not in {"0", "1", str(os.getpid())}:
        if re.search(re.escape(base) + rb"[/\0]", _cmdline(pid)):
            return True
        pid = _parent(pid)
    return False


def _machine_state(base: Path) -> dict[str, set[str]]:
    """What a leak would show in: this session's processes, mounts and files' users; control groups
    and network namespaces of anybody's."""
    pids = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and entry.name != str(os.getpid())
    ]
    processes = {f"{pid} {_cmdline(pid)[:80]!r}" for pid in pids if _ours(pid, os.fsencode(base))}
    mounts = {
        line.split()[4]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if str(base) in line
    }
    netns = (
        {path.name for path in Path("/run/netns").iterdir()}
        if Path("/run/netns").is_dir()
        else set()
    )
    return {"process": processes, "mount": mounts, "network namespace": netns}


def _more_than(before: dict[str, set[str]], after: dict[str, set[str]]) -> list[str]:
    return [f"{what}: {thing}" for what in after for thing in sorted(after[what] - before[what])]


def _cell_groups(base: Path) -> Iterator[Path]:
    """Control groups of cells that this session's ledgers know. Some tests put a pipe or a link in
    a ledger's place."""
    ledgers = [
        path
        for path in base.rglob("runs/*/ledger.jsonl")
        if path.is_file() and not path.is_symlink()
    ]
    ids = {
        cell for ledger in ledgers for cell in re.findall(rb"c-[0-9a-f]{12}", ledger.read_bytes())
    }
    for path in control_groups("cell-c-"):
        if os.fsencode(path.name.removeprefix("cell-")) in ids:
            yield path


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The suite checks itself: what it made on this host is gone when it ends."""
    base = tmp_path_factory.getbasetemp()
    os.environ[_SESSION] = str(base)
    before = _machine_state(base)
    yield
    give_up = time.monotonic() + _GRACE_S
    while left := _more_than(before, _machine_state(base)):
        if time.monotonic() > give_up:
            break
        time.sleep(0.1)
    left += [f"journal entry: {path}" for path in base.rglob("journal/[cr]-*.json")]
    left += [f"control group: {path}" for path in _cell_groups(base)]
    if left:
        pytest.fail("left on this host by the tests: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Held by who changes this host's accounts: the tools for it don't wait for each other."""
    return shared_folder(tmp_path_factory.getbasetemp()) / "accounts.lock"


@pytest.fixture(scope="session")
def ordinary_user(accounts: Path) -> Iterator[tuple[int, int]]:
    """A throwaway unprivileged account (uid, gid) with 65,536 subordinate ids when the tests run as
    root; it is removed afterwards, and its ids with it."""
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user already")
    name = f"bj{os.getpid()}"
    add = [
        "/usr/sbin/useradd",
        "--create-home",
        "--shell",
        "/bin/bash",
        "--comment",
        _COMMENT,
        name,
    ]
    try:
        with locked(accounts):
            _remove_stale_accounts()
            subprocess.run(add, check=True, capture_output=True)
            entry = pwd.getpwnam(name)
            _give_ids(name, entry.pw_uid)
        yield entry.pw_uid, entry.pw_gid
    finally:
        with locked(accounts):
            subprocess.run(
                ["/usr/sbin/userdel", "--remove", name], check=False, capture_output=True
            )


def _remove_stale_accounts() -> None:
    """Those of runs that were killed, or interrupted while several processes ran: pytest-xdist then
    ends them as they are."""
    for entry in pwd.getpwall():
        if (
            entry.pw_gecos == _COMMENT
            and not Path("/proc", entry.pw_name.removeprefix("bj")).exists()
        ):
            subprocess.run(
                ["/usr/sbin/userdel", "--remove", entry.pw_name], check=False, capture_output=True
            )


def _give_ids(name: str, uid: int) -> None:
    """Subordinate ids, where `useradd` gives none by itself. The range is far from those that
    `login.defs` usually has given."""
    first = (1 << 30) + (uid << 16)
    for file in ("subuid", "subgid"):
        path = Path("/etc", file)
        if path.exists() and any(
            line.startswith(f"{name}:") for line in path.read_text().splitlines()
        ):
            continue
        option = f"--add-{file}s={first}-{first + 65535}"
        subprocess.run(["/usr/sbin/usermod", option, name], check=True, capture_output=True)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that kills a cell from within its own block, which can't end before the kill does:
    the owner's 5 s to destroy it would pass in vain."""
    from belljar.isolation import kill

    monkeypatch.setattr(kill, "OWNER_GRACE_S", 0.2)


@pytest.fixture(scope="session")
def python() -> str:
    return sys.executable
