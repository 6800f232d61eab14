"""Cells for Harbor: `harbor run --env belljar.harbor:BelljarEnvironment`.

The one module that imports Harbor (extra `harbor`), which needs Python 3.12.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
import tempfile
import tomllib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy, TaskOS

from belljar.cell.cell import Cell
from belljar.cell.open import open_range
from belljar.cell.parts import start_run
from belljar.compose.document import ServiceBuild
from belljar.dataclass import replace
from belljar.errors import CellError, ContainmentBreach, PolicyError
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.host.settings import resolve_here
from belljar.image.missing import build_missing
from belljar.image.store import Store
from belljar.ledger.rundir import RunDirectory
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.network import Network
from belljar.policy.stand_ins import TargetStandIn
from belljar.probe.judge import Router
from belljar.probe.model import ProbeReport, Verdict, worst
from belljar.probe.run import probe_cell
from belljar.store.home import belljar_home
from belljar.units import printable

KIND: Final = "harbor"  # of the run directory's runs, beside `run` and `exec`


class BelljarEnvironment(BaseEnvironment):  # type: ignore[misc] # known with Python 3.12 only
    """One cell for each trial, made by `policy`: a preset or a file (`--ek policy=FILE`).

    The task's image, limits, variables and work directory replace the policy's.
    """

    _run: RunDirectory  # from the start on

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 - Harbor's
        policy: str = "",
        **options: Any,  # noqa: ANN401 - Harbor's
    ) -> None:
        self._loaded = resolve_here(policy or None)
        self._cell: Cell | None = None
        self._router: Router | None = None
        self._verdict = Verdict.VOID
        # The run outlives the range: its last event has the verdict of the end.
        self._stack, self._range = AsyncExitStack(), AsyncExitStack()
        super().__init__(*arguments, **options)

    @staticmethod
    def type() -> str:
        return "belljar"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            # Without it Harbor refuses "no-network" for the agent where the task says nothing else.
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self, *_policy: NetworkPolicy) -> None:
        """Refuse nothing: what a constructor raises ends the whole job. `start` refuses."""

    _validate_resource_mode_support = _validate_gpu_support = _validate_definition
    _validate_tpu_support = _validate_windows_support = _validate_definition
    validate_network_policy_support = _validate_definition

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        """Change nothing: `start` refuses a task whose phases differ."""

    def _hosts(self) -> frozenset[str]:
        wanted = [self._network_policy, *self._phase_network_policies]
        is_public = any(each.network_mode == NetworkMode.PUBLIC for each in wanted)
        if is_public and _names_public(self.environment_dir):
            hint = 'set network_mode = "no-network", or "allowlist" with simulated names'
            raise self._refused("the task asks for the Internet, which a cell never reaches", hint)
        allowed, *others = {frozenset(each.allowed_hosts) for each in wanted}
        if others:
            what = "its phases want different networks, and a cell has one from start to end"
            hint = 'name the hosts in [environment], or set environment_mode = "separate"'
            raise self._refused(what, hint)
        network = self._loaded.policy.network
        stand_ins = network.stand_ins.values() if network is not None else ()
        if unknown := sorted(allowed - {name for item in stand_ins for name in item.names}):
            what = f"the policy simulates nothing of the name {printable(unknown[0])}"
            hint = "--ek policy=FILE with a stand-in of this name: see docs/policy-network.md"
            raise self._refused(what, hint)
        return allowed

    def _refused(self, what: str, hint: str = "") -> PolicyError:
        return PolicyError(what, where=str(self.environment_dir.parent), hint=hint)

    async def start(self, force_build: bool) -> None:  # noqa: FBT001 - Harbor's interface
        """Build or find the image, open the cell, probe it.

        Raises `PolicyError` for what a cell can't give, `CellError` unless it is contained.
        """
        hosts = self._hosts()
        image = await anyio.to_thread.run_sync(self._image, force_build)
        policy = self._policy(image, hosts)
        run = start_run(KIND, self.session_id, [self.environment_name])
        try:
            self._run = self._stack.enter_context(run)
            # On the run's stack: an error while it opens ends the range before the record.
            self._stack.push_async_exit(self._range)
            made = await self._range.enter_async_context(open_range(policy, run=run))
            self._cell, self._router = made.cell, made.routers.get(made.cell.id)
            self._record(Kind.SAMPLE_STARTED)
            report = await self._probe("start")
            self._verdict = report.verdict
            if report.verdict is Verdict.BREACHED:
                raise ContainmentBreach("a probe got out of the cell", where=str(run.path))
            if report.verdict is not Verdict.CONTAINED:
                raise CellError("the probes did not show containment", where=str(run.path))
            self.logger.info("belljar: recorded in %s", run.path)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            self._cell = None
            await self._stack.__aexit__(*sys.exc_info())  # the record says how it ended
            raise

    async def stop(self, delete: bool) -> None:  # noqa: ARG002, FBT001 - a cell is never kept
        """Probe and destroy the cell, with proof; seal the record. Raises `ContainmentBreach`."""
        if self._cell is None:
            return
        run = self._run
        async with self._stack:
            # Void until the end is proven: an error must not leave the verdict of the start.
            started, self._verdict = self._verdict, Verdict.VOID
            try:
                report = await self._probe("end")
            finally:
                self._record(Kind.SAMPLE_FINISHED)
                self._cell = None
                await self._range.aclose()
            self._verdict = worst((started, report.verdict))
            ended: dict[str, JsonValue] = {"interrupted": False, "stopped": False, "errors": []}
            run.recorder.record(Event(kind=Kind.RUN_EVALUATED, data=ended, actor=Actor.HARNESS))
            is_contained = self._verdict is Verdict.CONTAINED
            outcome, code = ("completed", 0) if is_contained else ("failed", 2)
            run.finish(outcome, exit_code=code, verdict=self._verdict.value)
        if self._verdict is Verdict.BREACHED:
            raise ContainmentBreach("a probe got out of the cell", where=str(run.path))

    async def _probe(self, phase: str) -> ProbeReport:
        cell, recorder = self._running(), self._run.recorder
        return await probe_cell(cell, recorder=recorder, router=self._router, phase=phase)

    def _record(self, kind: Kind) -> None:
        about = {"task": self.environment_name, "sample": self.session_id, "uuid": self.session_id}
        cell_id, actor = self._running().id, Actor.HARNESS
        event = Event(kind=kind, data={**about}, cell_id=cell_id, actor=actor)
        self._run.recorder.record(event)

    def _image(self, force_build: bool) -> str:  # noqa: FBT001
        config = self.task_env_config
        if config.gpus or config.tpu or config.os == TaskOS.WINDOWS:
            raise self._refused("a task gets no GPU, no TPU and no Windows")
        if (self.environment_dir / "docker-compose.yaml").exists():
            hint = "write them as target cells of the policy's network: see docs/ranges.md"
            raise self._refused("a task with several services can't run in a cell", hint)
        if self._host_mounts:
            raise self._refused("no directory of the host is mounted into a cell")
        dockerfile, wanted = self.environment_dir / "Dockerfile", config.docker_image
        home = belljar_home()
        if wanted and not (force_build and dockerfile.exists()):
            if (error := Store(home).missing(wanted)) is not None:
                raise error
            return str(wanted)
        name, root = f"harbor-{self.environment_id[:12]}", str(self.environment_dir)
        # One that was built with the network, by hand, is as good.
        build = ServiceBuild(image=name, root=root, context=".", dockerfile="Dockerfile", args={})
        build_missing([build], {name}, home, report=self.logger.info)
        return name

    def _policy(self, image: str, hosts: frozenset[str]) -> LoadedPolicy:
        policy, config = self._loaded.policy, self.task_env_config
        limits = policy.resources
        for name, wanted in (
            ("cpus", math.ceil(self._resource_value("cpu") or 0)),
            ("memory_bytes", (self._resource_value("memory") or 0) << 20),
            ("disk_bytes", (config.storage_mb or 0) << 20),
        ):
            most = getattr(limits, name)
            if wanted > most:  # the policy is the operator's, and the task anybody's
                why = "belljar: the task wants %s of %d; the policy's %d holds"
                self.logger.warning(why, name, wanted, most)
            elif wanted:
                limits = replace(limits, **{name: wanted})
        changes: dict[str, Any] = {"image": image, "resources": limits}
        changes["network"] = _allowed(policy.network, hosts) if policy.network and hosts else None
        if config.workdir:
            changes["workdir"] = config.workdir
        return replace(self._loaded, policy=policy.model_copy(update=changes))

    def _source(self, path: Path | str) -> Path:
        """Return a path that may be sent: no link leads it out of the directory that it is in.

        That is the task's, the trial's, Harbor's own, or of temporary files. Raises `PolicyError`.
        """
        trial = getattr(self.trial_paths, "trial_dir", None)
        package = Path(inspect.getfile(BaseEnvironment)).parents[1]
        places = [self.environment_dir.parent, trial, package, tempfile.gettempdir()]
        source = Path(os.path.abspath(path))  # noqa: PTH100 - it resolves no link
        for place in (Path(os.path.abspath(each)) for each in places if each):  # noqa: PTH100
            if source.is_relative_to(place):
                if source.is_symlink() or not source.resolve().is_relative_to(place.resolve()):
                    break
                return source
        what = "it is a link, or not of the task, the trial or Harbor: it is not sent into a cell"
        hint = "put the file itself into the task's directory"
        raise PolicyError(what, where=printable(str(path)), hint=hint)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Raises `RuntimeError` on timeout, like Docker's."""
        who = self._resolve_user(user)
        output = await self._running().exec(
            ["bash", "-c", command],
            cwd=cwd or "",
            env=self._merge_env(env),
            timeout_s=timeout_sec,
            user=None if who is None else str(who),
        )
        if output.timed_out:
            raise RuntimeError(f"Command timed out after {output.duration_s:.0f} seconds")
        dropped = output.stdout_dropped_bytes + output.stderr_dropped_bytes
        notes = [f"belljar: {dropped:,} bytes of output were dropped"] if dropped else []
        notes += [printable(output.why_not_started)] if output.why_not_started else []
        return ExecResult(
            stdout=output.stdout_text,
            stderr="\n".join(filter(None, [output.stderr_text, *notes])),
            return_code=output.returncode,
        )

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = self._source(source_path)
        await self._running().upload(source, target_path, overwrite=True, user="0")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.upload_file(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._running().download(source_path, target_path, overwrite=True, user="0")

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a directory; name links out of it, pipes and devices."""
        options = {"overwrite": True, "skip_unsafe": True}
        done = await self._running().download(source_dir, target_dir, user="0", **options)
        for path in done.skipped:
            self.logger.warning("belljar: not copied: %s", printable(str(path)))

    def _running(self) -> Cell:
        if self._cell is None:
            raise RuntimeError("the environment is not started")
        return self._cell


def _names_public(environment_dir: Path) -> bool:
    """Harbor's own default is public, too: the task must ask."""
    for directory in environment_dir.parents:  # a step's verifier lies deeper than the task's
        try:
            task = tomllib.loads((directory / "task.toml").read_text())
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            break
        text = json.dumps(task, default=str)  # a key of any table in it; text in values is escaped
        return '"network_mode": "public"' in text or '"allow_internet": true' in text
    return True


def _allowed(network: Network, hosts: frozenset[str]) -> Network:
    kept = dict[str, Any]()
    for name, item in network.stand_ins.items():
        if names := tuple(each for each in item.names if each in hosts):
            kept[name] = item.model_copy(update={"names": names})
        if isinstance(item, TargetStandIn) and names and item.awaits:
            awaits = tuple(each for each in item.awaits if each in kept)
            kept[name] = kept[name].model_copy(update={"awaits": awaits})
    rest = {"default": "deny", "sink": False, "upstreams": ()}
    return network.model_copy(update={"stand_ins": kept, **rest})
