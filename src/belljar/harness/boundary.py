"""What `belljar run` controls in Inspect: no sandbox provider but Belljar's.

Others are refused in the registry, in their base class, and at the start of a sample. Raises
`HostError` where the installed Inspect lacks such a place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NoReturn

from inspect_ai.hooks import Hooks, SampleAttemptStart, hooks
from inspect_ai.util import SandboxEnvironment
from typing_extensions import override

from belljar.errors import BelljarError, HostError
from belljar.harness import config as configs
from belljar.harness.options import PROVIDER, unknown_inspect
from belljar.harness.provider import BelljarSandboxEnvironment
from belljar.harness.session import Session
from belljar.policy.limits import Risk
from belljar.report.reasons import ReasonCode
from belljar.units import printable
from belljar.waiting import print_status

# Inspect may ask these of another provider: to read tasks and logs that name one.
_HARMLESS: Final = ("config_files", "is_docker_compatible", "config_deserialize")
# Each caller imports it by name, so that patching the registry alone would not reach them.
_LOOKUP: Final = "registry_find_sandboxenv"
# Inspect's modules that look providers up, to use them.
_CALLERS: Final = ("_eval.loader", "_eval.run", "_eval.task.sandbox", "util._sandbox.context")


class SoleProvider:
    """Refuses other providers in all threads."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def refuse(self, what: str, *, where: str) -> NoReturn:
        """Stop the run before the provider is used."""
        what = f"{what}; under belljar run a task's commands run in cells only"
        hint = "let the task name no sandbox but its own: belljar run puts a cell in its place"
        self.session.refuse(what, where=where, hint=hint, cause=ReasonCode.OTHER_PROVIDER)

    def look_at(self, environments: Mapping[str, object] | None, *, where: str) -> None:
        """Check a starting sample's sandboxes. Raises `ContainmentBreach`."""
        if not environments:
            try:
                risk = configs.load(None, **self.session.operator_options).policy.risk
            except BelljarError:
                risk = Risk.HIGH  # what can't be read is not low
            if risk in {Risk.HIGH, Risk.CRITICAL}:
                self.refuse("a sample has no sandbox, and the policy's risk is high", where=where)
            print_status(f"belljar: {printable(where)}: it has no sandbox")
        for name, environment in (environments or {}).items():
            # Inspect wraps a sandbox in a proxy that records calls: the one inside counts.
            provider = type(getattr(environment, "_sandbox", environment))
            if not issubclass(provider, BelljarSandboxEnvironment):
                self.refuse(f"sandbox {name!r} is a {provider.__name__}", where=where)


class _Closed(type):
    """Replaces another provider; any use stops the run."""

    provider: type[SandboxEnvironment]
    sole: SoleProvider

    def __getattr__(cls, name: str) -> Any:  # noqa: ANN401 - never returns
        # Looks of Python itself are no use of the provider.
        if name.startswith("__"):
            raise AttributeError(name)
        what = f"the sandbox provider {cls.provider.__name__} was about to be used ({name})"
        cls.sole.refuse(what, where="inspect")


_lock = threading.Lock()
_active: SoleProvider | None = None


@hooks(name="belljar_sole_provider", description="Looks at the sandboxes of each sample.")
class LookAtSandboxes(Hooks):
    """Called when an attempt's sandboxes exist."""

    @override
    def enabled(self) -> bool:
        """Only during `belljar run`."""
        return _active is not None

    @override
    async def on_sample_attempt_start(self, data: SampleAttemptStart) -> None:
        """Stop the run when a sandbox is not a cell."""
        from inspect_ai.util._sandbox.context import sandbox_environments_context_var

        # Read once: the end of the run may take it away meanwhile.
        sole = _active
        if sole is None:
            return
        where = f"sample {data.summary.id}"
        try:
            sole.look_at(sandbox_environments_context_var.get(None), where=where)
        except Exception as error:  # noqa: BLE001 - what can't be looked at does not begin
            await sole.session.end_sample(error, where=where)


@contextmanager
def sole_provider(session: Session) -> Iterator[SoleProvider]:
    """Keep other providers out inside the block; an attempt to use one stops `session`.

    Raises `HostError` for an unknown Inspect, or when another run is active.
    """
    from importlib import import_module

    from inspect_ai.hooks._hooks import get_all_hooks
    from inspect_ai.util._sandbox import registry

    global _active
    sole = SoleProvider(session)
    with ExitStack() as stack:
        if not _lock.acquire(blocking=False):
            what = "another evaluation runs in this process"
            raise HostError(what, hint="run one after the other")
        stack.callback(_lock.release)
        _patch_registry(sole, stack)
        _patch_base_class(sole, stack)
        find = getattr(registry, _LOOKUP, None)
        for name in (f"inspect_ai.{caller}" for caller in _CALLERS):
            if find is None or getattr(import_module(name), _LOOKUP, None) is not find:
                raise unknown_inspect(f"{name} looks sandbox providers up in another way")
        if registry.registry_find_sandboxenv(PROVIDER) is not BelljarSandboxEnvironment:
            raise unknown_inspect("the sandbox provider `belljar` is not found")
        # Asked once, to see that the replacement has taken effect.
        if not isinstance(registry.registry_find_sandboxenv("local"), _Closed):
            raise unknown_inspect("its registry of sandbox providers can't be controlled")
        if not any(isinstance(hook, LookAtSandboxes) for hook in get_all_hooks()):
            raise unknown_inspect("a hook at the start of each sample is not called")
        _active = sole
        try:
            yield sole
        finally:
            _active = None


def _patch_registry(sole: SoleProvider, stack: ExitStack) -> None:
    from inspect_ai._util.registry import RegistryInfo
    from inspect_ai.util._sandbox import registry

    find = getattr(registry, "registry_find", None)
    if not callable(find):
        raise unknown_inspect("its registry of sandbox providers is not where it was")

    # Not what is registered under our name: a task may have registered another there.
    own = RegistryInfo(type="sandboxenv", name=f"{PROVIDER}/{PROVIDER}")

    def closed(provider: type[SandboxEnvironment]) -> _Closed:
        harmless = {name: staticmethod(getattr(provider, name)) for name in _HARMLESS}
        return _Closed(provider.__name__, (), {"provider": provider, "sole": sole, **harmless})

    def find_closed(predicate: Any) -> list[Any]:  # noqa: ANN401 - as Inspect's
        if predicate(own):
            return [BelljarSandboxEnvironment]
        return [closed(each) for each in find(predicate)]

    registry.__dict__["registry_find"] = find_closed
    stack.callback(registry.__dict__.__setitem__, "registry_find", find)


def _patch_base_class(sole: SoleProvider, stack: ExitStack) -> None:
    from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    made = SandboxEnvironment.__init__

    def check(kind: type) -> None:
        if not issubclass(kind, (BelljarSandboxEnvironment, SandboxEnvironmentProxy)):
            what = f"a sandbox of the provider {kind.__name__} was about to be made"
            sole.refuse(what, where="inspect")

    def new(cls: type, *_args: Any, **_more: Any) -> Any:  # noqa: ANN401 - as the original
        check(cls)
        return object.__new__(cls)

    def init(self: SandboxEnvironment, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        check(type(self))
        made(self, *args, **kwargs)

    if SandboxEnvironment.__new__ not in (object.__new__, _new):
        raise unknown_inspect("sandboxes are made in another way")
    # `__new__` for a provider that calls no `__init__` but its own, `__init__` for one with its own
    # `__new__`. A `__new__` that is taken away again would leave a class that takes no arguments.
    stack.callback(setattr, SandboxEnvironment, "__new__", _new)
    SandboxEnvironment.__new__ = new  # type: ignore[method-assign]
    stack.callback(setattr, SandboxEnvironment, "__init__", made)
    SandboxEnvironment.__init__ = init  # type: ignore[method-assign]
    if LocalSandboxEnvironment.__new__ is not new:
        raise unknown_inspect("the making of sandboxes can't be controlled")


def _new(cls: type, *_args: Any, **_more: Any) -> Any:  # noqa: ANN401
    return object.__new__(cls)
