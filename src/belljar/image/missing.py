"""Which images of a configuration the store does not have, and the command that gets each."""

from __future__ import annotations

from collections.abc import Iterable

from belljar.dataclass import dataclass
from belljar.errors import HostError
from belljar.image.store import Image, Store, command_for


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingImage:
    """An image as asked for, why the store lacks it, and the command that gets it."""

    image: str
    why: HostError
    command: str
    used_by: str = ""
    """The service or cell that needs it; "" where that is not known."""

    @property
    def sentence(self) -> str:
        """What is missing, and what for."""
        return f"{self.used_by} needs it: {self.why.what}" if self.used_by else self.why.what


def missing_images(store: Store, images: Iterable[str]) -> tuple[MissingImage, ...]:
    """Each image that the store does not have, once, in the order given."""
    return _looked_up(store, images)[1]


def find_images(store: Store, images: Iterable[str]) -> dict[str, Image]:
    """All of them. Raises one `HostError` for all that are missing, each with its command."""
    found, missing = _looked_up(store, images)
    refuse_missing(missing)
    return found


def refuse_missing(missing: tuple[MissingImage, ...]) -> None:
    """Raise one `HostError` for all of them; nothing when there is none."""
    if not missing:
        return
    all_at_once = "`belljar image import --from-compose FILE` or `--from-task TASK`"
    if len(missing) == 1:
        (one,) = missing
        hint = (
            f"{one.why.hint}; {all_at_once} also asks the local Docker daemon"
            if one.used_by
            else one.why.hint
        )
        raise HostError(one.sentence, where=one.why.where, hint=hint)
    listed = "".join(f"\n  {each.sentence}: `{each.command}`" for each in missing)
    hint = (
        f"run these commands; {all_at_once} runs them all, and asks the local Docker daemon first"
    )
    raise HostError(
        f"{len(missing)} images are missing{listed}", where=missing[0].why.where, hint=hint
    )


def _looked_up(
    store: Store, images: Iterable[str]
) -> tuple[dict[str, Image], tuple[MissingImage, ...]]:
    found, missing = dict[str, Image](), list[MissingImage]()
    for image in dict.fromkeys(images):
        try:
            found[image] = store.find(image)
        except HostError as error:
            missing.append(MissingImage(image=image, why=error, command=command_for(image)))
    return found, tuple(missing)
