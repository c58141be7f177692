"""What a position scheme is: its settings, what it is called, and the hooks through which it enters the Transformer.

Modules of schemes are read by the command line, the records and the reports, none of which waits for torch: a hook
imports it where it is used.
"""

# Shape suffixes: B batch, H heads, P positions, D head width, M model width, L positions, R = 2 max_distance + 1 rows.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import PositiveInt, model_validator

from rpr.validation import StrictModel

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Absolute = Literal["none", "sinusoidal", "learned"]


@dataclass(frozen=True)
class Site:
    """The self-attention of one stack, to which a scheme is applied."""

    num_layers: int
    num_heads: int
    d_model: int
    causal: bool  # the decoder's

    @property
    def d_head(self) -> int:
        return self.d_model // self.num_heads


class Tables(NamedTuple):
    """What attention adds by distance; row r is distance r - max_distance, key minus query position. None: nothing.

    Arguments of `rpr.model.attention.attend`. In causal attention the rows of positive distances are never read.
    """

    keys: Tensor | None = None  # [R, D] or [H, R, D]
    values: Tensor | None = None  # [R, D] or [H, R, D]
    bias: Tensor | None = None  # [H, R], added after the scale 1/sqrt(D)


class Rotation(NamedTuple):
    """RoPE as other programs name it, for exports."""

    width: int  # numbers of each head that are rotated
    interleaved: bool
    base: float
    linear_scale: float


REGISTERED: dict[str, type[Scheme]] = {}


def register(scheme: type[Scheme]) -> type[Scheme]:
    """Make a scheme known, under the value of its `scheme` field."""
    REGISTERED[scheme.scheme_name()] = scheme
    return scheme


class Scheme(StrictModel):
    """A position scheme of one stack: a subclass in a module of this package, with `register` above it, and a file
    in conf/position/.

    A subclass sets `scheme` (a Literal of its own), `TITLE` and `COLOUR`, its settings as fields, and overrides the
    hooks that it needs. Every hook is a pure function of the settings and of its arguments.
    """

    TITLE: ClassVar[str]
    COLOUR: ClassVar[str]
    ORDER: ClassVar[int] = 100  # of the rows in tables
    # Settings with which a trained model may be evaluated otherwise: they decide no parameter.
    AFTER_TRAINING: ClassVar[frozenset[str]] = frozenset()
    # Whether moving a whole sentence to other positions leaves the model's output as it is.
    SHIFT_INVARIANT: ClassVar[bool] = True

    name: str
    scheme: str
    absolute: Absolute
    max_positions: PositiveInt

    # --- identity

    @classmethod
    def scheme_name(cls) -> str:
        (name,) = get_args(cls.model_fields["scheme"].annotation)
        return str(name)

    @model_validator(mode="after")
    def the_name_is_not_of_another_kind(self) -> Self:
        known = {kind for scheme in REGISTERED.values() for kind in scheme.colours()}
        if self.name in known and self.name != self.kind:
            raise ValueError(
                f"name: {self.name} is not what these settings make, which is {self.kind}; "
                f"use position={self.kind}, or give them a name of their own (position.name=...)"
            )
        return self

    @classmethod
    def colours(cls) -> Mapping[str, str]:
        """The colour in plots, `#rrggbb`, of every `kind` that the settings can make, in the order of tables."""
        return {cls.scheme_name(): cls.COLOUR}

    @property
    def encoder(self) -> Scheme:
        return self

    @property
    def decoder(self) -> Scheme:
        return self

    @property
    def kind(self) -> str:
        """What decides the place in tables, and the colour: `relative`, `rope`, ..."""
        return self.scheme_name()

    @property
    def label(self) -> str:
        """The name in tables and plots, with every setting that differs from the literature's."""
        absolute = [] if self.absolute == "none" else [f"{self.absolute} positions too"]
        return ", ".join([self.TITLE, *self.details(), *absolute])

    @property
    def full_label(self) -> str:
        """The label where no table beside it says which heads and layers share relative tables."""
        return self.label

    def details(self) -> list[str]:
        """The settings that differ from the literature's, in words."""
        return []

    @property
    def k(self) -> int | None:
        """The distance beyond which the learned tables are clipped, where there are such tables."""
        return None

    @property
    def sharing(self) -> str | None:
        """Which heads and layers share relative tables, where that is a choice."""
        return None

    def identity(self) -> dict[str, Any]:
        """The settings that decide results: runs that agree in them have the same positions."""
        unused = {"name"} if self.absolute == "learned" else {"name", "max_positions"}
        return self.model_dump(mode="json", exclude=unused)

    @property
    def tracked(self) -> Mapping[str, Any]:
        """The settings by which runs are filtered and grouped in W&B, beside the name."""
        return self.identity()

    @property
    def shift_invariant(self) -> bool:
        """Whether shifting all positions by the same number changes nothing in a stack that has this scheme."""
        return self.SHIFT_INVARIANT and self.absolute == "none"

    # --- hooks

    @property
    def ordered(self) -> bool:
        """Whether an encoder with this scheme can tell the order of its tokens."""
        return True

    def problem(self, site: Site) -> str | None:
        """Why the scheme cannot be used there: `setting: reason; remedy`. None where it can."""
        return None

    def unused_setting(self, usual: Mapping[str, Any]) -> str | None:
        """A setting that was chosen (it is not as in `usual`, the model's own) and decides nothing: one line as above.
        It would make another run of the same one.
        """
        return None

    def embeddings(self, d_model: int) -> nn.Module | None:
        """What is added to the embeddings: a module called with (first, pieces [B, L]) that returns [L, M] or
        [B, L, M]; None where nothing is.
        """
        from rpr.model.vectors import absolute_positions

        return absolute_positions(self.absolute, d_model=d_model, max_positions=self.max_positions)

    def parameters(self, site: Site) -> dict[str, Tensor]:
        """The initial values of what one self-attention layer learns for the scheme, by name."""
        return {}

    @property
    def shared_by_layers(self) -> bool:
        """Whether all layers of a stack have the same parameters."""
        return False

    @property
    def has_tables(self) -> bool:
        """Whether `distance_tables` returns any."""
        return type(self).distance_tables is not Scheme.distance_tables

    @property
    def has_bias(self) -> bool:
        """Whether `distance_tables` returns a bias."""
        return self.has_tables

    @property
    def has_vectors(self) -> bool:
        """Whether `distance_tables` returns keys or values."""
        return False

    @property
    def reach(self) -> int | None:
        """The distance from which on the tables do not change; None where there is none."""
        return self.k

    def distance_tables(
        self, parameters: Mapping[str, Tensor], site: Site, max_distance: int, device: torch.device
    ) -> Tables:
        """The tables for sentences whose positions are at most max_distance apart.

        A table may have fewer rows, 2k+1, where all distances beyond k share the outermost ones.
        """
        return Tables()

    @property
    def changes_queries(self) -> bool:
        """Whether `prepare` does anything."""
        return type(self).prepare is not Scheme.prepare

    def prepare(
        self, q: Tensor, k: Tensor, positions: Tensor, parameters: Mapping[str, Tensor], site: Site
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys [B, H, P, D] at these positions (int64 [P]), before their product. Cached keys are the
        prepared ones, so what is done to a key may depend on its own position alone.
        """
        return q, k

    # --- exports

    def rotation(self, site: Site) -> Rotation | None:
        """What `prepare` does, where it is RoPE."""
        return None

    def query_scale(self, site: Site) -> float | None:
        """What `prepare` does, where it multiplies the queries by a number."""
        return None

    def not_exported(self, site: Site) -> str | None:
        """Why CTranslate2 cannot hold the scheme, as `setting: reason; remedy`; None where it can."""
        if self.changes_queries and self.rotation(site) is None and self.query_scale(site) is None:
            return (
                f"position: {self.name} changes queries and keys in a way that CTranslate2 has no place for; "
                "use format=safetensors"
            )
        if self.absolute != "none" and (self.has_tables or self.changes_queries):
            return (
                f"position.absolute: {self.absolute} beside {self.TITLE} cannot be exported, CTranslate2 leaves "
                "absolute positions out there: use format=safetensors, or train with one of both"
            )
        return None
