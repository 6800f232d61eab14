"""The manifests of `examples/kubernetes`, against Kubernetes' own schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

MANIFEST = Path(__file__).parents[2] / "examples" / "kubernetes" / "fleet.yaml"


def documents() -> list[dict[str, Any]]:
    """Those of Kubernetes itself, and the pods of KubeRay's cluster, whose schema is not there."""
    found = []
    for document in YAML(typ="safe").load_all(MANIFEST):
        if document["kind"] != "RayCluster":
            found.append(document)
            continue
        spec = document["spec"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}}
            found.append({**pod, "spec": group["template"]["spec"]})
    return found


@pytest.mark.parametrize("document", documents(), ids=lambda each: each["kind"])
def test_a_manifest_is_valid(document: dict[str, Any]) -> None:
    """Strictly: an unknown field is an error, too."""
    kubernetes_validate.validate(document, "1.34", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**document, "specs": {}}, "1.34", strict=True)
