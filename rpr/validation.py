"""Typed sections of settings: frozen, without extra keys, and with one-line errors that name the dotted key."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rpr.errors import ConfigError, Problem, did_you_mean

S = TypeVar("S", bound="StrictModel")

# How pydantic states a rule, and how we do.
_RULES = {
    "Value error, ": "", "Field required": "missing", "Extra inputs are not permitted": "no such field",
    "Input should be": "must be",
}  # fmt: skip


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

    @model_serializer(mode="wrap")
    def _without_later(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only settings that came after records were committed have a default here: at it they are not written, so that
        records, run ids and reports are what they were.
        """
        later = {key for key, field in type(self).model_fields.items() if not field.is_required()}
        unused = {key for key in later if getattr(self, key) == type(self).model_fields[key].default}
        return {key: value for key, value in written(self).items() if key not in unused}

    def problems(self) -> Iterable[str | Problem]:
        """What is wrong with valid settings together (of several: `settings: rule; remedy`); the first is reported."""
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
        raise ConfigError("; ".join(before + _describe(kind, problem) for problem in error.errors()[:3])) from None


def _describe(kind: type[StrictModel], problem: Any) -> str:
    path = tuple(map(str, problem["loc"]))
    rule, value, type_ = rule_of(problem), problem["input"], problem["type"]
    if type_ == "extra_forbidden":
        *sections, last = path
        known = settings_at(kind, sections)
        return f"{'.'.join([*_at(kind, sections)[0], last])}: no such setting{did_you_mean(last, known)}"
    key = ".".join(_at(kind, path)[0])
    if type_ == "missing":
        return f"{key}: missing; every default is in conf/, or in the folder of a choice of your own"
    if type_ == "value_error":  # of StrictModel.problems, which name setting, rule and remedy
        return f"{key}.{rule}" if key else rule
    if type_ in _TAGS:
        return str(Problem(f"{key}.{type_}", value.get(type_) if isinstance(value, Mapping) else value, rule))
    remedy = "give a list, e.g. [a,b]" if type_ == "tuple_type" else ""
    if type_ == "string_type" and isinstance(value, (bool, int, float)):
        remedy = f"write it in quotes, and these in quotes for the shell: \"{key}='...'\""
    return str(Problem(key, value, rule, remedy))


def first_problem(error: ValidationError) -> str:
    """Where the first problem is, and the rule that was broken there."""
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    return f"{where}: {rule_of(problem)}" if where else rule_of(problem)


def rule_of(problem: Any) -> str:
    """The rule that one of pydantic's errors says was broken: `must be greater than 0`."""
    message: str = problem["msg"]
    for stated, rule in _RULES.items():
        message = message.replace(stated, rule)
    return message[:1].lower() + message[1:]


def settings_at(kind: type[StrictModel], path: Sequence[str]) -> set[str]:
    """The names of the settings and sections at a path below a section."""
    return {field.alias or name for section in sections_at(kind, path) for name, field in section.model_fields.items()}


def sections_at(kind: type[StrictModel], path: Sequence[str]) -> list[type[StrictModel]]:
    """The typed sections at a path below another: several where they depend on a choice, none for a plain value."""
    return _at(kind, path)[1]


def _at(kind: type[StrictModel], path: Sequence[str]) -> tuple[list[str], list[type[StrictModel]]]:
    """The parts of a path without the tags by which pydantic selects one of several sections, and the sections there.
    A mapping has sections at any name.
    """
    names, sections, keyed = list[str](), [kind], False
    for part in path:
        annotations = [section.model_fields[part].annotation for section in sections if part in section.model_fields]
        if not keyed:
            if len(sections) > 1 and not annotations:
                continue
            sections = [inner for annotation in annotations for inner in _sections_in(annotation)]
        names.append(part)
        keyed = not keyed and any(get_origin(annotation) is dict for annotation in annotations)
    return names, list(dict.fromkeys(sections))


def _sections_in(annotation: Any) -> list[type[StrictModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, StrictModel) else []
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]
