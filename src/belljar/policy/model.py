"""What a policy says, typed. Frozen, strict, nothing unknown.

`Policy` is the edge: pydantic, reads what a person wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WrapSerializer, field_validator

from belljar.errors import PolicyError
from belljar.policy import fields as kinds
from belljar.policy.fields import AtError, Strict
from belljar.policy.guarding import GuardRules
from belljar.policy.limits import (
    HostTools,
    Resources,
    Risk,
    Tier,
    default_host_tools,
    demanded_tier,
)
from belljar.policy.network import Network, check_services, read_network
from belljar.policy.sections import (
    IMAGE,
    FilesField,
    HostRules,
    HostToolsField,
    ResourcesField,
    Rights,
)
from belljar.policy.serving import ModelBlock
from belljar.policy.signals import DecoysField, GuardField, StopsField
from belljar.policy.stand_ins import TargetStandIn

# All of them go along with each command of a cell.
MAX_VARIABLES: Final = 1024


class Policy(Strict):
    """What one cell may be, read, write, reach and consume."""

    # A file of another version is refused: what it would leave unbounded is unknown here.
    # `true` equals 1, and is no version.
    belljar: Annotated[
        Literal[1], BeforeValidator(lambda value: "" if value is True else value)
    ] = Field(description="The version of this format.")
    name: Annotated[str, kinds.NAME] = Field(
        default="policy",
        description="What this policy is called in reports; default the file's name.",
    )
    risk: Annotated[Risk, kinds.choice(Risk)] = Field(
        description="How bad the model's worst could be. Decides the least tier: low container, "
        "medium gvisor, high and critical microvm."
    )
    tier: Annotated[Tier, kinds.choice(Tier)] | None = Field(
        default=None, description="Only to raise the tier above what the risk demands."
    )
    image: Annotated[str, IMAGE] = Field(
        default="default", description="The root filesystem: an image's name or its sha256 digest."
    )
    resources: ResourcesField = Field(
        default=Resources(),
        description="What the cell may consume at most.",
        json_schema_extra={"default": {}},
    )
    user: Annotated[str, kinds.USER] | None = Field(
        default=None,
        description="Who runs commands: a name, a uid, or uid:gid. Default the image's user.",
    )
    workdir: Annotated[str, kinds.WORKDIR] | None = Field(
        default=None, description="Where commands run. Default the image's working directory."
    )
    env: Mapping[Annotated[str, kinds.ENV_NAME], Annotated[str, kinds.ENV_VALUE]] = Field(
        default_factory=dict,
        max_length=MAX_VARIABLES,
        description="Environment variables, added to the image's; read-only.",
    )
    files: FilesField = Field(default=(), description="Files that are copied in.")
    network: Annotated[
        Network | None,
        BeforeValidator(read_network, json_schema_input_type=Network | Literal["none"]),
        WrapSerializer(lambda network, dump: "none" if network is None else dump(network)),
    ] = Field(
        default=None,
        description="What the cell reaches, all of it simulated. none: it has no network device "
        "at all.",
        json_schema_extra={"default": "none"},
    )
    rights: Rights | None = Field(
        default=None,
        description="What the workload may do inside its cell beyond an ordinary container's. "
        "Granted by a tier whose kernel is the cell's own.",
    )
    host: HostRules | None = Field(
        default=None, description="What the host must be for a cell to run on it. Default: nothing."
    )
    host_tools: HostToolsField = Field(
        default=None,
        description="Tools of the evaluation that act outside of the cell (MCP servers, web "
        "search). Default refuse for risk high and critical, report below.",
    )
    decoys: DecoysField = Field(
        default=(),
        description="Fake secrets and services, made for each sample alone: `none`, `standard`, "
        "or a list.",
        json_schema_extra={"default": "none"},
    )
    guard: GuardField = Field(
        default=None,
        description="What is looked for in all that leaves the cell, and what becomes of it. "
        "Default: credentials and decoys are flagged, and blocked on their way to a real service.",
    )
    snapshots: bool = Field(
        default=False, description="Whether a cell in use may be saved and forked."
    )
    model: ModelBlock | None = Field(
        default=None, description="Makes this the policy of a model cell, which has no network."
    )
    on: StopsField = Field(
        default_factory=dict,
        description="What is stopped when something happens. Default: a breach stops the run.",
    )

    @field_validator("tier", mode="after")
    @classmethod
    def _only_raised(cls, tier: Tier | None, info: ValidationInfo) -> Tier | None:
        risk = info.data.get("risk")
        if risk is not None:
            try:
                demanded_tier(risk, tier)
            except PolicyError as error:
                raise ValueError(error.what) from None
        return tier

    @field_validator("network", mode="after")
    @classmethod
    def _within_the_risk(cls, network: Network | None, info: ValidationInfo) -> Network | None:
        risk = info.data.get("risk")
        if network is not None and risk is not None:
            if network.upstreams and risk > Risk.MEDIUM:
                raise AtError(f"risk `{risk}` reaches nothing real: use a stand-in", "upstreams")
            least = demanded_tier(risk, info.data.get("tier"))
            for name, item in network.stand_ins.items():
                if isinstance(item, TargetStandIn) and item.tier is not None and item.tier < least:
                    why = f"tier `{item.tier}` is less than this range's, `{least}`; a tier can"
                    raise AtError(f"{why} only be raised", "stand_ins", name, "tier")
        return network

    @field_validator("model", mode="after")
    @classmethod
    def _shut_in(cls, model: ModelBlock | None, info: ValidationInfo) -> ModelBlock | None:
        if model is None:
            return None
        if info.data.get("network") is not None:
            raise ValueError("a model cell has no network device: leave `network` out")
        risk = info.data.get("risk")
        is_high = risk is not None and risk > Risk.MEDIUM
        if is_high and model.gpu is not None and model.gpu.reason is None:
            why = "the host's graphics driver would be in the model's reach"
            raise AtError(f"risk `{risk}` gets no GPU without a `reason`: {why}", "gpu")
        return model

    @field_validator("decoys", mode="after")
    @classmethod
    def _services_have_a_network(cls, decoys: DecoysField, info: ValidationInfo) -> DecoysField:
        # Otherwise the network was refused, and a second message would only repeat that.
        if "network" in info.data:
            check_services(decoys, info.data["network"])
        return decoys

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    @property
    def images(self) -> tuple[str, ...]:
        """The images of its cell and target cells, each once."""
        others = self.network.stand_ins.values() if self.network else ()
        targets = (item.image for item in others if isinstance(item, TargetStandIn))
        return tuple(dict.fromkeys((self.image, *targets)))

    @property
    def host_tools_rule(self) -> HostTools:
        """The rule for tools that act outside of cells."""
        return self.host_tools or default_host_tools(self.risk)

    @property
    def guard_rules(self) -> GuardRules:
        """What the guard looks for and does."""
        return self.guard or GuardRules()

    def to_json(self) -> dict[str, Any]:
        """As JSON values, in bytes and seconds, with all defaults."""
        return self.model_dump(mode="json")


def policy_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a policy file, for editors."""
    schema = Policy.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Belljar policy",
    }
