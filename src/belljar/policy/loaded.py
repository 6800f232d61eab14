"""A policy with its source; presets without pydantic and YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from belljar.dataclass import dataclass, field, replace
from belljar.errors import PolicyError
from belljar.policy.files import read_regular, reason
from belljar.policy.guarding import GuardRules, Stop, Trigger
from belljar.policy.limits import HostTools, Resources, Risk, Tier, demanded_tier, usual_host_tools
from belljar.units import format_size, printable, quoted

if TYPE_CHECKING:
    from belljar.policy.model import Policy
    from belljar.policy.sections import FileCopy, TaskData

DEFAULT_PRESET: Final = "high"  # who names no policy gets a strong one
MAX_FILE_BYTES: Final = 100 << 20  # the file is read into memory and sent whole
FILE_RULE: Final = (
    f"each source is a readable regular file of at most {format_size(MAX_FILE_BYTES)} below the "
    f"policy's directory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetPolicy:
    """A preset, with `Policy`'s fields and properties."""

    belljar: int = 1
    name: str
    risk: Risk
    tier: Tier | None = None
    image: str = "default"
    resources: Resources = field(default_factory=Resources)
    user: None = None
    workdir: None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[FileCopy, ...] = ()
    network: None = None
    rights: None = None
    host: None = None
    host_tools: None = None
    decoys: tuple[()] = ()
    guard: None = None
    snapshots: bool = False
    model: None = None
    on: Mapping[Trigger, Stop] = field(default_factory=dict)

    @property
    def images(self) -> tuple[str, ...]:
        """It has one."""
        return (self.image,)

    @property
    def host_tools_rule(self) -> HostTools:
        """The rule for tools outside of cells."""
        return usual_host_tools(self.risk)

    @property
    def guard_rules(self) -> GuardRules:
        """The guard's defaults."""
        return GuardRules()

    def to_json(self) -> dict[str, Any]:
        """Return what `Policy.to_json` would."""
        found = {name: getattr(self, name) for name in self.__slots__}
        found |= {"risk": self.risk.value, "tier": self.tier.value if self.tier else None}
        found |= {"resources": self.resources.written(), "network": "none", "decoys": "none"}
        return found | {"env": {}, "files": [], "on": {}}


_CRITICAL: Final = Resources(
    disk_bytes=256 << 20, processes=256, lifetime_s=7200.0, exec_timeout_s=300.0
)
_PRESET_POLICIES: Final = (  # the same as `presets/*.yaml`, which a test compares with them
    PresetPolicy(name="low", risk=Risk.LOW),
    PresetPolicy(name="medium", risk=Risk.MEDIUM),
    PresetPolicy(name="high", risk=Risk.HIGH),
    PresetPolicy(name="critical", risk=Risk.CRITICAL, tier=Tier.MICROVM, resources=_CRITICAL),
)
PRESETS: Final = {preset.name: preset for preset in _PRESET_POLICIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A policy with its source; `base` is the directory of its files."""

    policy: Policy
    text: bytes
    source: str
    base: Path | None = None
    data: TaskData | None = field(default=None, hash=False)
    weights: Path | None = None

    def read_file(self, file: FileCopy) -> bytes:
        """Return a policy file's contents. Raises `PolicyError`."""
        try:
            content = read_regular(own_directory(self.base), file.source, MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise ValueError(f"it has more than {format_size(MAX_FILE_BYTES)}")
            return content
        except (OSError, ValueError) as exc:
            what = f"the file {quoted(file.source)} can't be copied in: {reason(exc)}"
            hint = f"correct `files`: {FILE_RULE}"
            raise PolicyError(what, where=printable(self.source), hint=hint) from exc


def own_directory(base: Path | None) -> Path:
    """Return `base`. Raises `ValueError` for none."""
    if base is None:
        raise ValueError("this policy has no directory of its own")
    return base


def preset_text(name: str) -> bytes:
    """Return the text of one of `PRESETS`."""
    return (Path(__file__).parent / "presets" / f"{name}.yaml").read_bytes()


def known_preset(name: str | None, least: Risk = Risk.LOW) -> LoadedPolicy | None:
    """Return a preset without YAML, if possible."""
    policy = PRESETS.get(DEFAULT_PRESET if name is None else name)
    if policy is None or policy.risk < least:
        return None
    text, source = preset_text(policy.name), f"preset:{policy.name}"
    return LoadedPolicy(policy=cast("Policy", policy), text=text, source=source)


def with_image(loaded: LoadedPolicy, image: str) -> LoadedPolicy:
    """Put in this image; "" changes nothing."""
    return _with(loaded, image=image) if image else loaded


def _with(loaded: LoadedPolicy, **changes: Any) -> LoadedPolicy:  # noqa: ANN401 - field values
    known: object = loaded.policy
    if isinstance(known, PresetPolicy):
        return replace(loaded, policy=cast("Policy", replace(known, **changes)))
    return replace(loaded, policy=loaded.policy.model_copy(update=changes))


def with_tier(loaded: LoadedPolicy, tier: Tier | str | None) -> LoadedPolicy:
    """Ask for this tier, if any. Raises `PolicyError`."""
    if not tier:
        return loaded
    try:
        asked = Tier(tier)
    except ValueError:
        hint = f"use one of {', '.join(map(str, Tier))}"
        what = f"there is no tier {quoted(str(tier))}"
        raise PolicyError(what, where="tier", hint=hint) from None
    least = demanded_tier(loaded.policy.risk, loaded.policy.tier)
    if asked < least:
        why = f"less than this policy demands, which is `{least}`; a tier can only be raised"
        what = f"tier `{asked}` is {why}"
        hint = f"ask for `{least}` or a stronger tier, or leave it out"
        raise PolicyError(what, where=printable(loaded.source), hint=hint)
    return _with(loaded, tier=asked)
