"""A scheme for each layer of a stack, from a few entries: recent models rotate in most layers and have no positions in
every fourth (SmolLM3, Llama 4; Yang et al. 2025, arXiv 2501.18795).

Imported after all other schemes, of which its entries are.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SerializeAsAny

from rpr.errors import Problem
from rpr.model.positions.scheme import REGISTERED, Scheme, Site, register
from rpr.validation import one_of

if TYPE_CHECKING:
    AnyEntry = Scheme
else:
    AnyEntry = one_of("scheme", dict(sorted(REGISTERED.items())), "no such scheme; name choices of conf/position/")


@register
class Pattern(Scheme):
    """`layers` names entries: repeated over the layers from the lowest on, or each for an equal share of them."""

    TITLE = "pattern"
    VERSION = "1"
    COLOUR = "#5d5d81"

    scheme: Literal["pattern"]
    layers: tuple[str, ...] = Field(min_length=1)
    repeat: bool
    entries: dict[str, SerializeAsAny[AnyEntry]]

    def problems(self) -> Iterable[str | Problem]:
        for name in self.layers:
            if name not in self.entries:
                yield f"layers: {name} is none of position.entries ({', '.join(self.entries) or 'none'})"
        for name, entry in self.entries.items():
            if name not in self.layers:
                yield f"entries.{name}: is not in position.layers=[{','.join(self.layers)}]; leave it out"
            if entry.random_positions:
                yield f"entries.{name}.random_positions: is of the whole stack; give it as position.random_positions"
            if entry.absolute != "none" or entry.has_own_embeddings:
                yield (
                    f"entries.{name}: adds positions to the embeddings, which all layers read; name another scheme, "
                    "and give the pattern position.absolute=sinusoidal or learned"
                )
        yield from super().problems()

    def __hash__(self) -> int:  # which a mapping has not
        return hash((self.layers, self.repeat, frozenset(self.entries.items())))

    @property
    def parts(self) -> tuple[Scheme, ...]:
        return tuple(self.entries.values())

    def of_layers(self, num_layers: int) -> list[Scheme]:
        named = len(self.layers)
        places = (layer % named if self.repeat else layer * named // num_layers for layer in range(num_layers))
        return [self.entries[self.layers[place]] for place in places]

    @property
    def may_change(self) -> frozenset[str]:
        by_name = {name: entry.AFTER_TRAINING for name, entry in self.entries.items()}
        of_one = (f"entries.{name}.{setting}" for name, settings in by_name.items() for setting in settings)
        return frozenset(of_one).union(*by_name.values())

    def changed(self, settings: Mapping[str, Any]) -> Scheme:
        of_one = settings.get("entries") or {}
        entries = {name: entry.changed(settings).changed(of_one.get(name, {})) for name, entry in self.entries.items()}
        return self.model_copy(update={"entries": entries})

    @property
    def label(self) -> str:
        numbers = {name: identity.get("table") for name, identity in self._identities().items()}
        labels = [
            self.entries[name].label + (f", table {numbers[name]}" if numbers[name] else "") for name in self.layers
        ]
        first, last, more = labels[0], labels[-1], len(labels)
        if self.repeat and more > 2 and labels == [first] * (more - 1) + [last]:
            pattern = f"{first}, every {more}{'rd' if more == 3 else 'th'} layer {last}"
        else:
            counted = ((label, len(list(same))) for label, same in groupby(labels))
            runs = "; ".join(label if count == 1 else f"{count} x {label}" for label, count in counted)
            pattern = f"{'in turn' if self.repeat else 'from the lowest layer up'}: {runs}"
        absolute = [] if self.absolute == "none" else [f"{self.absolute} positions too"]
        return ", ".join([pattern, *absolute, *self.common_details()])

    def identity(self, site: Site | None = None) -> dict[str, Any]:
        own = super().identity(site)
        del own["entries"]
        identities = self._identities(site)
        return own | {"layers": [identities[name] for name in self.layers]}

    def _identities(self, site: Site | None = None) -> dict[str, dict[str, Any]]:
        """Of each entry: with the number of its table, if entries alike each have one that their layers share."""
        identities = {name: self.entries[name].identity(site) for name in self.layers}
        numbered = {}
        for name, identity in identities.items():
            alike = [other for other in identities if identities[other] == identity]
            several = len(alike) > 1 and self.entries[name].shared_by_layers
            numbered[name] = identity | ({"table": alike.index(name) + 1} if several else {})
        return numbered

    @property
    def tracked(self) -> Mapping[str, Any]:
        of_entries = {
            f"{name}_{key}": value for name, entry in self.entries.items() for key, value in entry.tracked.items()
        }
        return {"layers": ",".join(self.layers), "repeat": self.repeat, **of_entries}

    @property
    def shift_invariant(self) -> bool | None:
        of_parts = {self.absolute == "none", *(part.shift_invariant for part in self.parts)}
        return next(value for value in (False, None, True) if value in of_parts)

    @property
    def ordered(self) -> bool:
        return self.absolute != "none" or any(part.ordered for part in self.parts)

    def problem(self, site: Site) -> str | None:
        for name in ("query_log_scale", "window", "sink"):
            if getattr(self, name):
                return f"{name}: is of single layers; give it to entries, as position.entries.{self.layers[-1]}"
        if len(self.layers) > site.num_layers:
            return (
                f"layers: [{','.join(self.layers)}] are more than the {site.num_layers} of model.num_layers; name "
                "fewer, or add layers"
            )
        problems = ((name, entry.problem(site)) for name, entry in self.entries.items())
        return next((f"entries.{name}.{problem}" for name, problem in problems if problem is not None), None)
