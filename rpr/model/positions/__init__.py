"""Position schemes. Each is one module of this package, discovered automatically, and one file of conf/position/.

Configuration, model, record, report, benchmark and exports use the interface `rpr.model.positions.scheme.Scheme`; no
other module names a scheme. Importing this package does not import torch.
"""

import ast
import hashlib
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from rpr.errors import ConfigError, RprError, did_you_mean
from rpr.model.positions.scheme import REGISTERED
from rpr.model.positions.scheme import Pairs as Pairs
from rpr.model.positions.scheme import Scheme as Scheme
from rpr.model.positions.scheme import Site as Site
from rpr.model.positions.scheme import Tables as Tables
from rpr.paths import schemes_dir
from rpr.validation import StrictModel, one_of


@cache  # of what was imported: a file may change under a long training
def code_of(scheme: type[Scheme]) -> str:
    """What names the code of a scheme in records: its `VERSION`, which the schemes of this project have (frozen with
    their values in tests/golden/schemes.json), so that refactoring changes no record. Else 16 hexadecimal digits: the
    sha256 of the syntax tree of its file, in which comments, docstrings and formatting do not count; joined by + with
    the version of a scheme that it extends.
    """
    parts: list[str] = []
    for kind in scheme.__mro__:
        if "VERSION" in vars(kind):
            return "+".join([*parts, str(vars(kind)["VERSION"])])
        if kind is Scheme:
            break
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is not None and (digested := digest(Path(file))) not in parts:
            parts.append(digested)
    return "+".join(parts)


def digest(file: Path) -> str:
    return hashlib.sha256(repr(_plain(ast.parse(file.read_text(encoding="utf-8")))).encode()).hexdigest()[:16]


def _plain(node: Any) -> Any:
    """A syntax tree without docstrings and without empty fields, which differ between versions of Python."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False)
    fields = dict(ast.iter_fields(node)) | ({"body": node.body[1:]} if documented else {})  # type: ignore[attr-defined]
    return type(node).__name__, [(name, _plain(value)) for name, value in fields.items() if value not in (None, [])]


def _discover() -> None:
    """Import the modules of this package, and those of the user's folder of schemes as if they were among them."""
    own = {module.name for module in pkgutil.iter_modules(__path__)}
    if (folder := schemes_dir()) is not None:
        if clash := own & {module.name for module in pkgutil.iter_modules([str(folder)])}:
            raise ConfigError(f"{folder / min(clash)}.py: has the name of a module of rpr; rename it")
        __path__.append(str(folder))
    # A pattern's entries are of all other schemes.
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name == "pattern"):
        try:
            importlib.import_module(f"rpr.model.positions.{module.name}")
        except RprError:
            raise
        except Exception as error:  # of code that is not ours
            file = Path(str(module.module_finder.path), f"{module.name}.py")  # type: ignore[union-attr]
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ConfigError(f"{file}: cannot be imported ({reason})") from error
    for scheme in REGISTERED.values():  # read now: a file may be edited before a run's record names its code
        code_of(scheme)


_discover()

SCHEMES: Mapping[str, type[Scheme]] = MappingProxyType(
    dict(sorted(REGISTERED.items(), key=lambda one: (one[1].ORDER, one[0])))
)
MIXED = "mixed"
# Every kind of positions with its colour in plots, in the order in which tables list them.
COLOURS: Mapping[str, str] = MappingProxyType(
    {kind: colour for scheme in SCHEMES.values() for kind, colour in scheme.colours().items()} | {MIXED: "#6f5b3e"}
)

_NO_SCHEME = (
    f"no such scheme; choose position=... from conf/position/ ({', '.join(SCHEMES)}), "
    "or give the folder of one of your own, schemes_dir=DIR, with @register above its class"
)

if TYPE_CHECKING:
    AnyScheme = Scheme
else:
    AnyScheme = one_of("scheme", SCHEMES, _NO_SCHEME)


class Sides(StrictModel):
    """A scheme for the encoder and another one for the decoder, with the same interface as `Scheme`."""

    kind: ClassVar[str] = MIXED
    k: ClassVar[int | None] = None
    sharing: ClassVar[str | None] = None

    name: str
    scheme: Literal["sides"]
    encoder: AnyScheme
    decoder: AnyScheme

    @property
    def label(self) -> str:
        return f"{self.encoder.label} in the encoder, {self.decoder.label} in the decoder"

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


def of_user(scheme: Scheme) -> bool:
    """Whether its class is not of this package, whose tests try it."""
    file = getattr(sys.modules[type(scheme).__module__], "__file__", None)
    return file is None or Path(file).parent != Path(__file__).parent


def codes(schemes: Iterable[Scheme]) -> dict[str, str]:
    """The version of the code of each scheme, by its name."""
    return {part.scheme: code_of(type(part)) for scheme in schemes for part in (scheme, *scheme.parts)}


def changed_code(schemes: Iterable[Scheme], recorded: Mapping[str, str] | None) -> list[str]:
    """The changes of code since these versions, in words; earlier records have none."""
    known = recorded or {}
    return [
        f"the code of {name} has changed (version {known[name]}, now {code})"
        for name, code in codes(schemes).items()
        if known.get(name, code) != code
    ]


def changed_after_training(positions: Positions, changes: Mapping[str, Any]) -> Positions:
    """The positions of a trained model with changed settings that affect no parameter, on each side that has them;
    those of `entries` by the name of a pattern's entry, of it alone. Raises ConfigError where neither side has one.
    """
    sides = (positions.encoder, positions.decoder)
    known = {name for side in sides for name in side.may_change}
    of_entries = [
        f"entries.{name}.{setting}" for name, own in (changes.get("entries") or {}).items() for setting in own
    ]
    for name in sorted({*changes, *of_entries} - known - {"entries"}):
        available = did_you_mean(name, known) if known else "; these positions have no setting that can"
        raise ConfigError(f"position.{name}: cannot be changed after training" + available)
    encoder, decoder = (side.changed(changes) for side in sides)
    return positions.model_copy(update={"encoder": encoder, "decoder": decoder}) if positions.kind == MIXED else decoder


if TYPE_CHECKING:
    AnyPositions = Positions
else:
    AnyPositions = Annotated[one_of("scheme", {**SCHEMES, "sides": Sides}, _NO_SCHEME), BeforeValidator(_by_side)]
