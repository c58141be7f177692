"""Position schemes. Each is one module of this package, discovered automatically, and one file of conf/position/.

Configuration, model, record, report, benchmark and exports use the interface `rpr.model.positions.scheme.Scheme`; no
other module names a scheme. Importing this package does not import torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from rpr.errors import ConfigError, did_you_mean
from rpr.model.positions.scheme import REGISTERED
from rpr.model.positions.scheme import Scheme as Scheme
from rpr.model.positions.scheme import Site as Site
from rpr.model.positions.scheme import Tables as Tables
from rpr.validation import StrictModel, one_of, validate

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"rpr.model.positions.{_module.name}")

SCHEMES: Mapping[str, type[Scheme]] = MappingProxyType(
    dict(sorted(REGISTERED.items(), key=lambda one: (one[1].ORDER, one[0])))
)
MIXED = "mixed"
# Every kind of positions with its colour in plots, in the order in which tables list them.
COLOURS: Mapping[str, str] = MappingProxyType(
    {kind: colour for scheme in SCHEMES.values() for kind, colour in scheme.colours().items()} | {MIXED: "#6f5b3e"}
)

_NO_SCHEME = f"no such scheme; choose position=... from conf/position/ ({', '.join(SCHEMES)})"

if TYPE_CHECKING:
    AnyScheme = Scheme
else:
    AnyScheme = one_of("scheme", SCHEMES, _NO_SCHEME)


class Sides(StrictModel):
    """A scheme for the encoder and another one for the decoder, with the same interface as `Scheme`."""

    name: str
    scheme: Literal["sides"]
    encoder: AnyScheme
    decoder: AnyScheme

    @property
    def kind(self) -> str:
        return MIXED

    @property
    def label(self) -> str:
        return f"{self.encoder.label} in the encoder, {self.decoder.label} in the decoder"

    @property
    def k(self) -> int | None:
        return None

    @property
    def sharing(self) -> str | None:
        return None

    def identity(self) -> dict[str, Any]:
        return {"encoder": self.encoder.identity(), "decoder": self.decoder.identity()}

    @property
    def tracked(self) -> dict[str, Any]:
        return {
            f"{side}_{key}": value
            for side, scheme in (("encoder", self.encoder), ("decoder", self.decoder))
            for key, value in scheme.tracked.items()
        }


def _by_side(settings: Any) -> Any:
    """Normalise the settings of `position`: with its own `encoder` or `decoder` a scheme becomes `Sides`, and two equal
    sides become a single scheme.
    """
    if not isinstance(settings, Mapping) or not {"encoder", "decoder"} & settings.keys():
        return settings
    both = {key: value for key, value in settings.items() if key not in ("encoder", "decoder")}
    if both.get("scheme") == "sides":
        return settings
    encoder, decoder = (settings.get(side) or both for side in ("encoder", "decoder"))
    if not isinstance(encoder, Mapping) or not isinstance(decoder, Mapping):
        return settings
    if encoder == decoder:
        return encoder
    name = f"{encoder.get('name')}-{decoder.get('name')}"
    return {"name": name, "scheme": "sides", "encoder": encoder, "decoder": decoder}


Positions = Scheme | Sides


def changed_after_training(positions: Positions, changes: Mapping[str, Any]) -> Positions:
    """The positions of a trained model with changed settings that affect no parameter, on each side that has them.

    Raises:
        ConfigError: neither side has such a setting, or a value is invalid.
    """
    known = positions.encoder.AFTER_TRAINING | positions.decoder.AFTER_TRAINING
    for name in changes:
        if name not in known:
            available = did_you_mean(name, known) if known else "; these positions have no setting that can"
            raise ConfigError(f"position.{name}: cannot be changed after training" + available)

    def changed(scheme: Scheme) -> Scheme:
        own = {name: value for name, value in changes.items() if name in scheme.AFTER_TRAINING}
        return validate(type(scheme), {**scheme.model_dump(), **own}, at="position") if own else scheme

    if isinstance(positions, Sides):
        return positions.model_copy(
            update={"encoder": changed(positions.encoder), "decoder": changed(positions.decoder)}
        )
    return changed(positions)


if TYPE_CHECKING:
    AnyPositions = Positions
else:
    AnyPositions = Annotated[one_of("scheme", {**SCHEMES, "sides": Sides}, _NO_SCHEME), BeforeValidator(_by_side)]
