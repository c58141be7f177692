"""The settings that every position scheme has, and how a scheme is named in tables, plots, records and W&B."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import Field, PositiveInt, model_validator

from rpr.validation import StrictModel

Absolute = Literal["none", "sinusoidal", "learned"]
REGISTERED: dict[str, type[Any]] = {}  # every scheme by its name


def without_earlier(settings: Any) -> Any:
    """Plain settings of positions, of any part, without those that have their earlier value."""
    if not isinstance(settings, Mapping):
        return settings
    scheme = REGISTERED.get(str(settings.get("scheme")))
    earlier = {} if scheme is None else scheme.EARLIER
    kept = {name: value for name, value in settings.items() if name not in earlier or value != earlier[name]}
    return {name: without_earlier(value) for name, value in kept.items()}


def with_earlier_values(settings: Any) -> Any:
    """Recorded settings of positions, of any part, with the earlier value of those that are newer than the record."""
    if not isinstance(settings, Mapping):
        return settings
    scheme = REGISTERED.get(str(settings.get("scheme")))
    given = {name: with_earlier_values(value) for name, value in settings.items()}
    return given if scheme is None else {**given, **{k: v for k, v in scheme.EARLIER.items() if k not in given}}


class Described(StrictModel):
    """What a scheme is, without what it does (`rpr.model.positions.scheme.Scheme`)."""

    TITLE: ClassVar[str]
    COLOUR: ClassVar[str]
    ORDER: ClassVar[int] = 100  # sort key of rows in tables
    # What names the code in records. To be raised with every change to what the hooks return; without it, every change
    # to the source counts (rpr/model/positions/source.py).
    VERSION: ClassVar[str]

    # Settings that were added later, with the value that describes what runs did before: older records are read with
    # it, and runs with it keep their id.
    EARLIER: ClassVar[Mapping[str, Any]] = {
        "query_log_scale": 0.0,
        "query_log_floor": 8192,
        "random_positions": None,
    }

    name: str
    scheme: str
    absolute: Absolute
    max_positions: PositiveInt
    query_log_scale: float = Field(ge=0)
    query_log_floor: PositiveInt
    random_positions: int | None = Field(ge=2)

    @model_validator(mode="before")
    @classmethod
    def with_earlier(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        dropped = {"random_offset"} if settings.get("random_offset") == 0 else set()  # of records until schema 2
        return {name: value for name, value in {**cls.EARLIER, **settings}.items() if name not in dropped}

    @classmethod
    def scheme_name(cls) -> str:
        (name,) = get_args(cls.model_fields["scheme"].annotation)
        return str(name)

    @model_validator(mode="after")
    def the_name_is_not_of_another_kind(self) -> Self:
        known = {kind for scheme in REGISTERED.values() for kind in scheme.colours()}
        if self.name in known and self.name != self.kind:
            raise ValueError(
                f"name: {self.name} does not match these settings, which are {self.kind}; "
                f"use position={self.kind}, or choose another name (position.name=...)"
            )
        return self

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
        return []

    def common_details(self) -> list[str]:
        """As `details`, of the settings that every scheme has."""
        details = []
        if self.query_log_scale or self.query_log_floor != 8192:
            details.append(f"queries x (1 + {self.query_log_scale:g} log(position / {self.query_log_floor}))")
        if self.random_positions is not None:
            details.append(f"random positions below {self.random_positions} in training")
        return details

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

    def identity(self) -> dict[str, Any]:
        """The settings that affect results: runs that agree in them have the same positions."""
        unused = {"name", "max_positions"} if self.num_learned is None else {"name"}
        settings: dict[str, Any] = without_earlier(self.model_dump(mode="json", exclude=unused))
        return settings

    @property
    def tracked(self) -> Mapping[str, Any]:
        """The settings by which runs are filtered and grouped in W&B, in addition to the name."""
        return self.identity()
