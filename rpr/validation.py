"""Typed sections of settings: frozen, without extra keys, and with one-line errors that name the dotted key."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rpr.errors import ConfigError, did_you_mean

S = TypeVar("S", bound="StrictModel")

# How pydantic states a rule, and how we do; in this order.
_RULES = {
    "Value error, ": "",
    "Extra inputs are not permitted": "no such field",
    "Field required": "missing",
    "Input should be a valid integer": "must be a whole number",
    "Input should be a valid number": "must be a number",
    "Input should be a valid string": "must be text",
    "Input should be a valid boolean": "must be true or false",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be": "must be",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    ", unable to interpret input": "",
    ", got a number with a fractional part": "",
}


class StrictModel(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def reject_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic would accept true as 1."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and not {annotation, *get_args(annotation)} & {bool, str}:
            raise PydanticCustomError("switch", "this setting is not a boolean")
        return value

    @model_validator(mode="after")
    def _no_problem(self) -> Self:
        for problem in self.problems():
            raise ValueError(problem)
        return self

    def problems(self) -> Iterable[str]:
        """What is wrong with valid settings together, as `setting: rule; remedy`; the first one is reported."""
        return ()


_TAGS = ("scheme", "kind")  # settings that select one of several sections


def one_of(tag: str, sections: Mapping[str, type[StrictModel]], message: str) -> Any:
    """The type of a section that is one of several, selected by its setting `tag`; `message` is the error without."""
    assert tag in _TAGS
    selected = Discriminator(
        lambda settings: settings.get(tag) if isinstance(settings, Mapping) else getattr(settings, tag, None),
        custom_error_type=tag,
        custom_error_message=message,
    )
    return Annotated[Union[tuple(Annotated[section, Tag(name)] for name, section in sections.items())], selected]  # noqa: UP007 (only known at run time)


def validate(kind: type[S], settings: Mapping[str, Any], *, at: str = "") -> S:
    """Plain settings as a typed section; `at` is the section's dotted key. Raises ConfigError with one line that names
    the dotted key, the value, the rule and the choices.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        before = f"{at}." if at else ""
        raise ConfigError(
            "; ".join(before + _describe(kind, problem) for problem in _root_problems(error)[:3])
        ) from None


def _root_problems(error: ValidationError) -> list[Any]:
    """The problems, without "too short" for a list that has an invalid value."""
    problems: list[Any] = list(error.errors())
    invalid = {problem["loc"][:-1] for problem in problems}
    return [problem for problem in problems if problem["type"] != "too_short" or problem["loc"] not in invalid]


def _describe(kind: type[StrictModel], problem: Any) -> str:
    path = tuple(str(part) for part in problem["loc"])
    *sections, last = path or ("",)
    key = ".".join(part for at, part in enumerate(path) if not _is_tag(kind, path[:at], part))
    if problem["type"] == "extra_forbidden":
        return f"{key}: no such setting" + did_you_mean(last, settings_at(kind, sections))
    if problem["type"] == "missing":
        return f"{key}: missing; every default is in conf/, or in the folder of a choice of your own"
    message = rule_of(problem)
    if problem["type"] == "value_error":
        return f"{key}.{message}" if key else message
    if problem["type"] == "tuple_type":
        message = "expected a list, e.g. [a,b]"
    if (tag := problem["type"]) in _TAGS:
        value = problem["input"]
        selecting = value.get(tag) if isinstance(value, Mapping) else value
        return f"{key}.{tag}: invalid value {selecting!r}: {message}"
    if problem["type"] == "string_type" and isinstance(problem["input"], (bool, int, float)):
        of_list = isinstance(problem["loc"][-1], int)
        setting = f"{key.removesuffix(f'.{last}')}=['...']" if of_list else f"{key}='...'"
        message += f'; write it in quotes, and these in quotes for the shell: "{setting}"'
    return f"{key}: invalid value {problem['input']!r}: {message}"


def first_problem(error: ValidationError) -> str:
    """Where the first problem is, and the rule that was broken there."""
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    return f"{where}: {rule_of(problem)}" if where else rule_of(problem)


def rule_of(problem: Any) -> str:
    """The rule that one of pydantic's errors says was broken: `must be at least 1`."""
    message: str = problem["msg"]
    for stated, rule in _RULES.items():
        message = message.replace(stated, rule)
    return message[:1].lower() + message[1:]


def _is_tag(kind: type[StrictModel], before: Sequence[str], part: str) -> bool:
    """Whether a part of a problem's location is the tag of a section in a union, not the name of a setting."""
    return len(sections_at(kind, before)) > 1 and part not in settings_at(kind, before)


def settings_at(kind: type[StrictModel], path: Sequence[str]) -> set[str]:
    """The names of the settings and sections at a path below a section."""
    return {field.alias or name for section in sections_at(kind, path) for name, field in section.model_fields.items()}


def sections_at(kind: type[StrictModel], path: Sequence[str]) -> list[type[StrictModel]]:
    """The typed sections at a path below another: several where they depend on a choice, none for a plain value or a
    mapping, which has some at any name.
    """
    sections, of_mapping = [kind], list[type[StrictModel]]()
    for part in path:
        if of_mapping:
            sections, of_mapping = of_mapping, []
            continue
        if len(sections) > 1 and (tagged := [each for each in sections if _tag(each) == part]):
            sections = tagged
            continue
        annotations = [each.model_fields[part].annotation for each in sections if part in each.model_fields]
        sections = [section for annotation in annotations for section in _sections_in(annotation)]
        if any(get_origin(annotation) is dict for annotation in annotations):
            sections, of_mapping = [], sections
    return sections


def _tag(section: type[StrictModel]) -> str | None:
    """The value that selects a section."""
    fields = [section.model_fields[tag] for tag in _TAGS if tag in section.model_fields]
    values = [value for field in fields for value in get_args(field.annotation)]
    return str(values[0]) if values else None


def _sections_in(annotation: Any) -> list[type[StrictModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, StrictModel) else []
    return list(dict.fromkeys(section for inner in get_args(annotation) for section in _sections_in(inner)))
