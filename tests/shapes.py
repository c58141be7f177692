"""Shapes of small models, with flat position settings as in conf/position/."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rpr.model.config import TransformerConfig
from rpr.model.positions import SCHEMES, Scheme
from rpr.paths import data_dir

COMMON = {
    "absolute": "none", "max_positions": 16, "query_log_scale": 0.0, "query_log_floor": 8192, "random_positions": None,
}  # fmt: skip
NO_VECTORS = {
    **COMMON, "name": "mine", "scheme": "vectors", "relative_keys": False, "relative_values": False,
    "clip_distance": 2, "tables": "per_head",
}  # fmt: skip


@cache
def settings_of(choice: str) -> dict[str, Any]:
    """Of a file of conf/position/ and of those that it extends."""
    own: Any = OmegaConf.to_container(OmegaConf.load(Path(data_dir("conf"), "position", f"{choice}.yaml")))
    parts = [part.partition("@entries.") for part in own.pop("defaults", ()) if part != "_self_"]
    merged = {key: value for choice, _, entry in parts if not entry for key, value in settings_of(choice).items()}
    entries = {entry: settings_of(choice) | own["entries"].get(entry, {}) for choice, _, entry in parts if entry}
    return merged | own | ({"entries": entries} if entries else {})


def scheme(choice: str, **changes: Any) -> Scheme:
    """A choice of conf/position/, with other values of some settings."""
    found = {**settings_of(choice), **changes}
    if "layers" in found:  # as compose fills them
        names = {name: name if name in choices() else name.rpartition("_")[0] for name in found["layers"]}
        entries = {name: scheme(choice, **found["entries"].get(name, {})) for name, choice in names.items()}
        found["entries"] = {name: entry.model_dump() for name, entry in entries.items()}
    model_defaults = {"clip_distance": 2, "tables": "per_head"}
    found |= {key: value for key, value in model_defaults.items() if str(found.get(key)).startswith("${")}
    return SCHEMES[found["scheme"]].model_validate(found)


def choices() -> list[str]:
    """Every choice of conf/position/."""
    return sorted(path.stem for path in Path(data_dir("conf"), "position").glob("[!_]*.yaml"))


def shape(**settings: Any) -> TransformerConfig:
    """A shape of vectors, the same on both sides."""
    own = {key: settings.pop(key) for key in list(settings) if key in NO_VECTORS}
    vectors = SCHEMES["vectors"].model_validate({**NO_VECTORS, **own})
    return TransformerConfig(**settings, encoder_positions=vectors, decoder_positions=vectors)


def changed(base: TransformerConfig, **settings: Any) -> TransformerConfig:
    """`base` with other settings, those of its vectors among them."""
    own = {key: settings.pop(key) for key in list(settings) if key in NO_VECTORS}
    if own:
        vectors = SCHEMES["vectors"].model_validate({**base.encoder_positions.model_dump(), **own})
        settings |= {"encoder_positions": vectors, "decoder_positions": vectors}
    if settings.get("architecture") == "decoder_only":
        settings["encoder_positions"] = None
    return dataclasses.replace(base, **settings)
