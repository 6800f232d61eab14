"""The house rules that a machine can check: sizes, docstrings of tests, nothing of one machine in tracked files."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 40
LONG_FUNCTIONS_SHARE = 0.02


def tracked(*patterns: str) -> list[Path]:
    """Files git knows, or every file where there is no git (a source archive)."""
    found = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return [ROOT / name for name in found.stdout.split("\n") if name and (ROOT / name).is_file()]
    return [path for pattern in patterns for path in ROOT.glob(f"**/{pattern}")]


def functions(folder: str) -> Iterator[tuple[str, int]]:
    """Name and length (docstring not counted) of every function below a folder."""
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
                first = node.body[1].lineno if has_docstring else node.lineno
                yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or first) - first + 1


def test_files_stay_one_room() -> None:
    """No source file is longer than 500 lines."""
    long = {
        str(f.relative_to(ROOT)): n
        for f in tracked("*.py", "*.c", "*.h")
        if (n := len(f.read_text().splitlines())) > MAX_FILE_LINES
    }
    assert not long


def test_functions_stay_small() -> None:
    """The median function is under 10 lines; at most one in fifty is over 40."""
    lengths = dict(functions("src"))
    long = {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES}
    assert statistics.median(lengths.values()) < 10
    assert len(long) <= LONG_FUNCTIONS_SHARE * len(lengths), long


def test_every_test_says_its_property() -> None:
    """Each test function has a docstring."""
    silent = []
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test_")
                and not ast.get_docstring(node)
            ):
                silent.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not silent


def test_nothing_of_one_machine_is_tracked() -> None:
    """No package registry's host and no absolute path of a developer's machine stands in a tracked file."""
    hosts = "|".join(
        ["deb" + r"\.debian\.org", "pypi" + r"\.org", "files" + r"\.pythonhosted", "registry" + r"\.npmjs"]
    )
    leak = re.compile(rf"(^|[^a-zA-Z0-9_.])/(wo{''}rk|fa{''}rm)/|{hosts}")
    found = []
    for file in tracked("*"):
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{file.relative_to(ROOT)}:{n}" for n, line in enumerate(text.splitlines(), 1) if leak.search(line)]
    assert not found


def test_source_has_no_assert() -> None:
    """`python -O` must not remove a check: the package has no assert statement."""
    asserts = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert not asserts


# Modules without a test file of their own, by the test that holds them. Shrink this: a module that gets its own test must go from here.
HELD_ELSEWHERE = {
    "tests/integration/test_image_build.py": ["cli/image_build", "image/rootless"],
    "tests/integration/test_ports.py": ["isolation/port"],
    "tests/unit/compose/test_extends.py": ["compose/merge"],
    "tests/unit/compose/test_keys.py": ["compose/model"],
    "tests/unit/harness/test_controls.py": ["harness/control_clients"],
    "tests/unit/network/owner/test_watch.py": ["network/owner/range_state"],
    "tests/unit/policy/test_stand_ins.py": ["policy/stand_in"],
    "tests/unit/cell/test_cell.py": ["cell/base", "cell/exec"],
    "tests/unit/channel/test_client.py": ["channel/feeding"],
    "tests/unit/channel/test_wire.py": ["channel/messages"],
    "tests/unit/cli/test_doctor_cli.py": ["cli/_facts"],
    "tests/unit/cli/test_main_errors.py": ["errors"],
    "tests/unit/cli/test_setup_cli.py": ["cli/setup_plan", "cli/setup_state"],
    "tests/unit/harness/test_attach_socket.py": ["harness/attach_frames", "harness/lifecycle", "harness/release"],
    "tests/unit/harness/test_provider.py": [
        "harness/_registry",
        "harness/sample_cell",
        "harness/capacity",
        "harness/identity",
    ],
    "tests/integration/test_controls.py": ["cli/control"],
    "tests/unit/harness/test_table.py": ["cli/run"],
    "tests/unit/host/test_settings.py": ["host/settings_file"],
    "tests/unit/ledger/test_schema.py": ["events", "ledger/kinds"],
    "tests/unit/ledger/test_verification.py": ["ledger/checker", "ledger/manifest"],
    "tests/unit/plan/test_make.py": ["plan/model"],
    "tests/unit/policy/test_host_tools.py": ["policy/outside_tools"],
    "tests/unit/policy/test_resources.py": ["policy/limits"],
    "tests/unit/policy/test_rights.py": ["policy/granted"],
    "tests/unit/probe/test_catalogue.py": [
        f"probe/catalogue/{group}"
        for group in (
            "_entry",
            "channel",
            "devices",
            "doors",
            "files",
            "fingerprint",
            "kernel",
            "mounts",
            "namespaces",
            "network",
            "persistence",
            "processes",
            "resources",
        )
    ],
    "tests/unit/report/test_findings.py": ["report/cells", "report/reconcile", "report/samples"],
    "tests/security/test_hostile_archive.py": [
        "image/layers/blob",
        "image/layers/headers",
        "image/layers/limits",
        "image/layers/tree",
        "image/oci",
    ],
    "tests/integration/test_gateway_h2.py": ["network/gateway/websocket"],
    "tests/integration/test_gateway_hostile.py": [
        "network/gateway/websocket",
    ],
    "tests/integration/test_gateway_http.py": [
        "network/gateway/context",
        "network/gateway/middleware",
        "network/gateway/pipe",
        "network/gateway/serve",
    ],
    "tests/integration/test_gateway_streams.py": ["network/gateway/stream"],
    "tests/integration/test_decoy_contacts.py": ["harness/score"],
    "tests/integration/test_guard.py": ["harness/boundary"],
    "tests/integration/test_image.py": ["image/fetch", "image/pack", "image/tools"],
    "tests/integration/test_inspect_run.py": ["cli/attach", "cli/runs"],
    "tests/integration/test_oci.py": [
        "isolation/jail",
        "isolation/oci/open",
        "isolation/oci/prove",
        "isolation/oci/runtime_root",
        "isolation/oci/trees",
        "isolation/program_root",
    ],
    "tests/integration/test_range.py": [
        f"network/{part}"
        for part in (
            "confine",
            "gateway/main",
            "supervisor/main",
            "owner/making",
            "supervisor/nft",
            "owner/processes",
            "owner/requests",
            "capture/main",
            "syscalls",
            "fork_server",
        )
    ],
    "tests/integration/test_microvm.py": [
        "isolation/microvm/guest_files",
        "isolation/microvm/prove",
        "isolation/microvm/template",
        "isolation/microvm/clone",
        "isolation/microvm/vmm_root",
    ],
}


def has_a_test_of_its_own(module: Path) -> bool:
    """Whether `tests/unit/<room>` has `test_<module>.py` or `test_<module>_<topic>.py`."""
    room = ROOT / "tests/unit" / (module.parts[0] if len(module.parts) > 1 else "")
    name = module.stem.lstrip("_")
    found = [file for pattern in (f"test_{name}.py", f"test_{name}_*.py") for file in room.rglob(pattern)]
    return any(len(module.parts) > 1 or file.parent == room for file in found)


def test_unit_tests_mirror_the_source() -> None:
    """Each module has a unit test file of its own, or stands in the list with the test that holds it; the list only shrinks."""
    source = ROOT / "src/belljar"
    modules = {f.relative_to(source).with_suffix("") for f in source.rglob("*.py") if not f.name.startswith("__")}
    excused = {Path(name) for names in HELD_ELSEWHERE.values() for name in names}
    assert [test for test in HELD_ELSEWHERE if not (ROOT / test).is_file()] == []
    assert {str(m) for m in modules if not has_a_test_of_its_own(m)} == {str(m) for m in excused}
