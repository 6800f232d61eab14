"""What an image's documents say: the manifest for this machine, and the names in an archive. Any
JSON is survived."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.image.layers import LayerError
from belljar.image.origin import instance_of, is_index, names_of_archive
from belljar.policy.reference import parse_reference

DIGEST = "sha256:" + "1" * 64
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                (
                    "manifests",
                    "annotations",
                    "RepoTags",
                    "org.opencontainers.image.ref.name",
                    "digest",
                    "x",
                )
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


def test_the_manifest_for_this_machine_is_chosen() -> None:
    """Attestations and other processors beside it are passed over; none for it is an error that
    lists what there is."""
    entry = {
        "mediaType": MANIFEST,
        "digest": DIGEST,
        "platform": {"os": "linux", "architecture": "arm64"},
    }
    attestation = entry | {"platform": {"os": "unknown", "architecture": "unknown"}}
    assert instance_of({"manifests": [attestation, entry]}, "arm64") == DIGEST
    with pytest.raises(LayerError, match="linux/arm64, unknown/unknown"):
        instance_of({"manifests": [attestation, entry]}, "amd64")
    with pytest.raises(LayerError):
        instance_of({"manifests": [entry | {"digest": "../../etc"}]}, "arm64")


@pytest.mark.promise("1.8")
@given(json_values)
def test_any_document_has_names_or_none(document: object) -> None:
    """No document does harm; what is taken for a name is one in its normal form, at most two for
    each that stands there."""
    found = list(names_of_archive(document))
    if isinstance(document, dict):
        is_index(document)
    for name in (name for names in found for name in names):
        assert parse_reference(name).familiar == name


def test_an_archive_names_at_most_so_many() -> None:
    """A thousand tags are cut to 32, and to their names without Podman's `localhost/`."""
    (names,) = names_of_archive([{"RepoTags": [f"localhost/x:{number}" for number in range(1000)]}])
    assert len(names) == 64
    assert names[:2] == ("x:0", "localhost/x:0")
