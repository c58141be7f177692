"""The interface of a position scheme: its settings, names and hooks through which it enters the Transformer.

The command line, the records and the reports import the scheme modules and must not wait for torch: hooks use that of
`rpr.model.lazy_torch`, or import it locally. docs/your-scheme.md says when each hook is called.
"""

# Shape suffixes: B batch, H heads, P positions, D head width, M model width, L positions, R = 2 max_distance + 1 rows.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, PositiveFloat, PositiveInt

from rpr.errors import ConfigError, Problem, did_you_mean
from rpr.model.lazy_torch import Device, Module, Tensor
from rpr.validation import Name, StrictModel, validate

Absolute = Literal["none", "sinusoidal", "learned"]
ByName = Mapping[str, "Tensor"]  # a scheme's parameters, or projections of a layer's input
REGISTERED: dict[str, type[Scheme]] = {}  # every scheme by its name


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
    """The tables that attention adds by distance; row r is for distance r - max_distance, key minus query position. In
    causal attention the rows of positive distances are never read.
    """

    keys: Tensor | None = None  # [R, D] or [H, R, D]; with `distance_queries` [R, X] or [H, R, X]
    values: Tensor | None = None  # [R, D] or [H, R, D]
    bias: Tensor | None = None  # [H, R], added after the scale 1/sqrt(D)


class Pairs(NamedTuple):
    """Scores of queries and keys, which are in the order of time; all tensors are broadcastable to the scores.

    Positions are [Q, 1] and [K] of all tokens at once, and [B, 1, Q, 1] and [B, 1, 1, K] in decoding, where sentences
    differ: a table is read as `table[distances]`, [Q, K] or [B, 1, Q, K], not as `table[:, distances]`.
    """

    scores: Tensor  # [B, H, Q, K], scaled, with all other terms
    visible: Tensor  # bool
    q: Tensor  # [B, H, Q, D], prepared
    query_positions: Tensor  # int64
    key_positions: Tensor  # int64


class Rotation(NamedTuple):
    """The parameters of RoPE, for exports."""

    width: int  # rotated dimensions per head
    interleaved: bool
    base: float
    linear_scale: float
    proportion: float = 1.0  # of all pairs, those that rotate: the fastest
    yarn: tuple[float, int] | None = None  # factor and trained length
    llama3: tuple[float, int] | None = None  # factor and trained length
    longrope: tuple[tuple[float, ...], float, int] | None = None  # a factor for each pair, factor and trained length


def register(scheme: type[Scheme]) -> type[Scheme]:
    """Register a scheme under the value of its `scheme` field. Raises ConfigError for a class without name, title or
    colour, with the name of another scheme, or with a public attribute that is no part of the interface.
    """
    if (problem := _wrong(scheme)) is not None:
        raise ConfigError(f"{scheme.__module__}: the position scheme {scheme.__name__} {problem}")
    REGISTERED[scheme.scheme_name()] = scheme
    return scheme


def _wrong(scheme: type[Scheme]) -> str | None:
    # 1. What every scheme needs, and a name that is not of another one; the same class may be defined again.
    names = get_args(scheme.model_fields["scheme"].annotation)
    if len(names) != 1 or not hasattr(scheme, "TITLE") or not (hasattr(scheme, "COLOUR") or "colours" in vars(scheme)):
        return 'needs scheme: Literal["..."], TITLE = "..." for tables and COLOUR = "#rrggbb" for plots'
    others = [registered for registered in REGISTERED.values() if repr(registered) != repr(scheme)]
    known_names = {"sides", "mixed"}.union(*({other.scheme_name(), *other.colours()} for other in others))
    if taken := known_names & {scheme.scheme_name(), *scheme.colours()}:
        return f"has the name {min(taken)!r} of another scheme; choose another one"
    # 2. What the class, and those between it and Scheme, define: hooks alone, as what is misspelt would do nothing.
    decorators = scheme.__pydantic_decorators__
    settings = {name for name in Scheme.__annotations__ if not isinstance(vars(Scheme).get(name), property)}
    private = {*decorators.model_validators, *decorators.field_validators, *settings}
    own = {name: value for kind in scheme.__mro__ if Scheme in kind.__mro__[1:] for name, value in vars(kind).items()}
    for name in sorted(own.keys() - private):
        if name.startswith(("_", "model_")):
            continue
        if (known := vars(Scheme).get(name)) is None:
            hint = did_you_mean(name, [name for name in (*vars(Scheme), *Scheme.__annotations__) if name[0] != "_"])
            return f"has {name}, which is no part of the interface{hint}; a helper's name begins with an underscore"
        if isinstance(known, property) != isinstance(own[name], property):
            return f"defines {name} {'without' if isinstance(known, property) else 'with'} @property"
    if "projections" not in own and (uncalled := {"distance_queries", "key_bias"} & own.keys()):
        return f"defines {min(uncalled)} without projections, from which alone it is computed"
    return None


def _defines(hook: str) -> Any:
    return property(lambda scheme: getattr(type(scheme), hook) is not getattr(Scheme, hook))


class Scheme(StrictModel):
    """A position scheme of one stack: a subclass decorated with `@register`, and a file in conf/position/. It has
    `scheme` (a Literal of its own), `TITLE` and `COLOUR`, its settings as fields, and the hooks that it needs, each a
    pure function of the settings and its arguments.
    """

    TITLE: ClassVar[str]
    COLOUR: ClassVar[str]
    ORDER: ClassVar[int] = 100  # sort key of rows in tables
    # What names the code in records. To be raised with every change to what the hooks return; without it, every change
    # to the source counts (`code_of`).
    VERSION: ClassVar[str]

    # Of settings that a label shows, the published value, and another one in words.
    PUBLISHED: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    # Settings that may be changed when evaluating a trained model, since they affect no parameter.
    AFTER_TRAINING: ClassVar[frozenset[str]] = frozenset()
    # Whether the model's output is unchanged when all positions of a sentence are shifted; None: up to some position.
    SHIFT_INVARIANT: ClassVar[bool | None] = True
    CAUSAL_ONLY: ClassVar[bool] = False  # not defined for an encoder
    ADDS_TO_SCORES: ClassVar[bool] = False  # `scores` adds what depends on no score and no query

    name: Name
    scheme: str
    absolute: Absolute
    max_positions: PositiveInt
    query_log_scale: float = Field(ge=0)
    query_log_floor: PositiveInt
    random_positions: int | None = Field(ge=2)
    initial_std: PositiveFloat | None = None  # of learned absolute vectors; None: 1/sqrt(M)
    key_offset: Literal["none", "second_half", "slow_pairs"] = "none"
    key_offset_first: Literal["own", "zero"] = "zero"
    key_offset_at: Literal["before_norm", "after_norm"] = "after_norm"
    window: PositiveInt | None = None
    sink: bool = False

    @classmethod
    def scheme_name(cls) -> str:
        (name,) = get_args(cls.model_fields["scheme"].annotation)
        return str(name)

    def problems(self) -> Iterable[str | Problem]:
        known = {kind for scheme in REGISTERED.values() for kind in scheme.colours()}
        if self.name in known and self.name != self.kind:
            yield (
                f"name: {self.name} does not match these settings, which are {self.kind}; "
                f"use position={self.kind}, or choose another name (position.name=...)"
            )

    # --- names

    @classmethod
    def colours(cls) -> Mapping[str, str]:
        """The colour in plots, `#rrggbb`, of every possible `kind`, in the order of tables."""
        return {cls.scheme_name(): cls.COLOUR}

    @property
    def encoder(self) -> Self:
        return self

    @property
    def decoder(self) -> Self:
        return self

    @property
    def kind(self) -> str:
        """The kind of positions, which determines order in tables and colour: `relative`, `rope`, ..."""
        return self.scheme_name()

    @property
    def label(self) -> str:
        """The name in tables and plots, with every setting that differs from the published one."""
        fixed = len(get_args(type(self).model_fields["absolute"].annotation)) == 1
        absolute = [] if fixed or self.absolute == "none" else [f"{self.absolute} positions too"]
        return ", ".join([self.TITLE, *self.details(), *absolute, *self.common_details()])

    def details(self) -> list[str]:
        """The settings that differ from the published ones, in words."""
        values = ((form, usual, getattr(self, name)) for name, (usual, form) in self.PUBLISHED.items())
        return [form.format(value).replace("_", " ") for form, usual, value in values if value != usual]

    def common_details(self) -> list[str]:
        """As `details`, of the settings that every scheme has."""
        return [words for _, read, words in self._common() if read and words]

    def _common(self) -> list[tuple[set[str], bool, str]]:
        """Settings that every scheme has, whether they have an effect, and that in words if it is to be shown."""
        norm = self.key_offset_at.replace("_", " the ")
        offset = f"{self.key_offset.replace('_', ' ')}, the first {self.key_offset_first}, {norm}"
        offset = f"half of each key from the token before ({offset})"
        growth = f"queries x (1 + {self.query_log_scale:g} log(position / {self.query_log_floor}))"
        spread = "" if self.initial_std is None else f"initial std {self.initial_std:g}"
        embeds = self.absolute != "none" or self.has_own_embeddings
        drawn_for = bool(self.random_positions) and (embeds or any(part.uses_positions for part in self.parts))
        return [
            ({"query_log_scale", "query_log_floor"}, self.query_log_scale > 0, growth),
            ({"max_positions", "initial_std"}, self.num_learned is not None, spread),
            ({"key_offset_first", "key_offset_at"}, self.offsets_keys, offset),
            ({"random_positions"}, drawn_for, f"random positions below {self.random_positions} in training"),
            ({"window"}, self.window is not None, f"window {self.window}"),
            ({"sink"}, self.sink, "sink"),
        ]

    @property
    def num_learned(self) -> int | None:
        """Rows of the learned absolute table, which documents cannot pass; None without one."""
        return self.max_positions if self.absolute == "learned" else None

    @property
    def k(self) -> int | None:
        """The distance beyond which the learned tables are clipped; None without such tables."""
        return None

    @property
    def sharing(self) -> str | None:
        """Which heads and layers share relative tables; None if that is no setting."""
        return None

    def identity(self, site: Site | None = None) -> dict[str, Any]:
        """The settings that affect results, at this site: runs that agree in them have the same positions."""
        unread = {"name"}.union(*(settings for settings, read, _ in self._common() if not read))
        return self.model_dump(mode="json", exclude=unread)

    @property
    def tracked(self) -> Mapping[str, Any]:
        """The settings by which runs are filtered and grouped in W&B, in addition to the name."""
        return self.identity()

    @property
    def may_change(self) -> frozenset[str]:
        """The settings that a trained model may change, those of a pattern's entries as `entries.NAME.SETTING`, too."""
        return self.AFTER_TRAINING

    def changed(self, settings: Mapping[str, Any]) -> Scheme:
        """With those of the settings that it may change; raises ConfigError for a value that is invalid."""
        known = {name: value for name, value in settings.items() if name in self.AFTER_TRAINING}
        return validate(type(self), {**self.model_dump(), **known}, at="position") if known else self

    # --- layers

    @property
    def parts(self) -> tuple[Scheme, ...]:
        """The schemes that differ between layers; most schemes are their own only part."""
        return (self,)

    def of_layers(self, num_layers: int) -> Sequence[Scheme]:
        """The scheme of each layer of a stack, from the lowest on."""
        return [self] * num_layers

    @property
    def shift_invariant(self) -> bool | None:
        """Whether a stack with this scheme is invariant to shifting all positions; None: up to some position."""
        if self.absolute != "none" or self.SHIFT_INVARIANT is False:
            return False
        return None if self.query_log_scale else self.SHIFT_INVARIANT

    # --- what is asked of a scheme

    @property
    def ordered(self) -> bool:
        """Whether an encoder with this scheme can distinguish the order of its tokens."""
        return True

    def problem(self, site: Site) -> str | None:
        """Why the scheme cannot be used at this site, as `setting: reason; remedy`; None if it can."""
        if self.offsets_keys and site.d_head % 4:
            return f"key_offset: a head's {site.d_head} dimensions are no multiple of 4; choose another model.num_heads"
        remedy = "choose model.architecture=decoder_only, or position.encoder=... for the encoder"
        causal = f"name: {self.name} is for causal attention only; {remedy}"
        return causal if self.CAUSAL_ONLY and not site.causal else None

    def refusal(self, site: Site, longest: int) -> str | None:
        """`problem`, or that learned positions would be clamped in silence: `longest` is the longest context of
        documents in tokens (0: of pairs, of any length).
        """
        reached = max(longest, self.random_positions or 0)
        if self.num_learned is not None and self.num_learned < reached:
            return (
                f"max_positions: {self.max_positions} learned positions do not reach the longest context of {reached} "
                "tokens (data.context_length, evaluation.context_lengths, position.random_positions); raise it"
            )
        return self.problem(site)

    def untrained(self, window: int, longest: int) -> str | None:
        """What a text of `longest` tokens reads and none of `window` trains, so that it stays as it was initialised."""
        first = max(window, self.random_positions or 0)
        if longest > first and self.num_learned is not None:
            return f"the learned positions from {first} on"
        reached = [min(part.reach or 0, part.window or longest) for part in self.parts]
        if longest > first and max(reached) > first:
            return f"the learned vectors or biases of distances from {first} on"
        return None

    @property
    def uses_positions(self) -> bool:
        """Whether a layer's scores change if tokens stay in their order, but at other positions."""
        hooks = self.has_tables or self.changes_queries or self.has_scores
        return (hooks and self.ordered) or self.query_log_scale > 0

    @property
    def windowed(self) -> bool:
        """Whether a layer has a window or a sink."""
        return any(part.window is not None or part.sink for part in self.parts)

    @property
    def offsets_keys(self) -> bool:
        return self.key_offset != "none"

    @property
    def acts_in_layers(self) -> bool:
        """Whether it changes self-attention, and not the embeddings alone."""
        hooks = (self.has_tables, self.changes_queries, self.has_projections, self.has_scores, self.has_angles)
        return any(hooks) or self.query_log_scale > 0 or self.offsets_keys

    @property
    def not_fused(self) -> str | None:
        """What the fused kernel, which knows only tables by distance and windows, cannot compute."""
        drawn = self.random_positions is not None
        for part in self.parts:
            by_what = {"bias of keys": part.has_key_bias, "changed scores": part.has_scores, "sink": part.sink}
            if present := [what for what, has in by_what.items() if has]:
                return present[0]
        return "random positions" if drawn and any(part.has_tables for part in self.parts) else None

    # --- hooks, and whether a scheme has each, which a subclass may make depend on its settings

    has_own_embeddings: ClassVar[Any] = _defines("embeddings")
    has_tables: ClassVar[Any] = _defines("distance_tables")
    has_projections: ClassVar[Any] = _defines("projections")
    has_key_bias: ClassVar[Any] = _defines("key_bias")
    has_scores: ClassVar[Any] = _defines("scores")
    changes_queries: ClassVar[Any] = _defines("prepare")
    has_angles: ClassVar[Any] = _defines("angles")

    def embeddings(self, d_model: int) -> Module | None:
        """What is added to the embeddings: a module that is called with (first, pieces [B, L]), and returns [L, M] or
        [B, L, M].
        """
        from rpr.model.vectors import LearnedPositions, SinusoidalPositions

        if self.absolute == "sinusoidal":
            return SinusoidalPositions(d_model)
        return None if self.num_learned is None else LearnedPositions(self.num_learned, d_model, self.initial_std)

    def parameters(self, site: Site) -> dict[str, Tensor]:
        """The initial values of the scheme's parameters in one self-attention layer, by name."""
        return {}

    @property
    def shared_by_layers(self) -> bool:
        """Whether all layers of a stack share the parameters."""
        return False

    def distance_tables(self, parameters: ByName, site: Site, max_distance: int, device: Device) -> Tables:
        """Of sentences whose positions are at most max_distance apart; a table may have fewer rows, 2k+1, if all
        distances beyond k share the outermost ones.
        """
        return Tables()

    @property
    def has_bias(self) -> bool:
        """Whether `distance_tables` returns a bias."""
        return bool(self.has_tables)

    @property
    def reach(self) -> int | None:
        """The distance from which on the tables are constant; None if there is none."""
        return self.k

    def slopes(self, site: Site) -> tuple[float, ...] | None:
        """Of each head, if the only table is a bias in proportion to the distance of keys up to the query's own."""
        return None

    def projections(self, site: Site) -> dict[str, Tensor]:
        """The initial weights, [width, M], of learned projections of the layer's input, by name."""
        return {}

    def distance_queries(self, projected: ByName, parameters: ByName, site: Site) -> Tensor | None:
        """What multiplies the rows of the key tables in place of the queries, [B, H, P, X], from the projections of the
        layer's input, [B, P, width] by name; the products are added after the scale. None: the queries do.
        """
        return None

    @property
    def grows_distance_queries(self) -> bool:
        """Whether `query_log_scale` multiplies what `distance_queries` returns, too."""
        return False

    def key_bias(self, projected: ByName, parameters: ByName, site: Site, before: Tensor) -> Tensor:
        """What is added to the scaled scores of each key, [B, H, P], from the projections of the layer's input. It may
        be a running sum: `before` is that of the key before the first, [B, H], in float32 or wider, or 0.
        """
        raise NotImplementedError  # attention asks only a scheme that has it

    def scores(self, pairs: Pairs, parameters: ByName, site: Site) -> Tensor:
        """Other scores [B, H, Q, K], for what no other hook can do: attention then holds all of them, forward and
        backward. A score may depend on the scores of visible keys of its query alone.
        """
        return pairs.scores

    def prepare(self, q: Tensor, k: Tensor, positions: Tensor, parameters: ByName, site: Site) -> tuple[Tensor, Tensor]:
        """Queries and keys [B, H, P, D] at these positions (int64 [P]) for their product: of another width, if both are
        and key tables have it, too. In decoding all rows come as one sentence, [1, H, X, D], with a position each.
        Prepared keys are cached, so each may depend on its own position alone.
        """
        return q, k

    HISTORY: ClassVar[int] = 0  # positions before the first that `angles` reads, as a convolution does

    def angles(self, projected: ByName, parameters: ByName, site: Site, before: Tensor) -> Tensor:
        """Angles [B, H, P, W] by which the pairs (i, i + W) of queries and keys are rotated, before `prepare`; W is at
        most D / 2. They may run over the text: `before` is those of the position before the first, [B, H, W], or
        zeros [B, H, 1] at its start. `projected` has the projections of the layer's input by name, and the input itself
        as "x", [B, HISTORY + P, width]; of positions before the text zeros. All is float32 or wider.
        """
        raise NotImplementedError  # as `key_bias`

    # --- exports

    def rotation(self, site: Site) -> Rotation | None:
        """The parameters of `prepare` if it is RoPE; else None."""
        return None

    def query_scale(self, site: Site) -> float | None:
        """The factor of `prepare` if it only scales the queries; else None."""
        return None
