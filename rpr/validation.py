"""Typed sections of settings: frozen, without extra keys, and with one-line errors that name the dotted key."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar, Union, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
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
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]  # part of a file's name
_CHOICE = "="  # before a choice among sections, where pydantic says the place of an error


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


def one_of(tag: str, sections: Mapping[str, type[StrictModel]], message: str) -> Any:
    """The type of a section that is one of several, selected by its setting `tag`; `message` is the error without."""

    def choice(settings: Any) -> str:
        name = settings.get(tag) if isinstance(settings, Mapping) else getattr(settings, tag, None)
        return f"{_CHOICE}{name}"

    choices = tuple(Annotated[section, Tag(f"{_CHOICE}{name}")] for name, section in sections.items())
    selected = Discriminator(choice, custom_error_type=_CHOICE + tag, custom_error_message=message)
    return Annotated[Union[choices], selected]  # noqa: UP007 (only known at run time)


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
    *sections, last = path = _path(problem) or [""]
    key, rule, value, type_ = ".".join(path), rule_of(problem), problem["input"], problem["type"]
    if type_ == "extra_forbidden":
        return f"{key}: no such setting{did_you_mean(last, settings_at(kind, sections))}"
    if type_ == "missing":
        return f"{key}: missing; every default is in conf/, or in the folder of a choice of your own"
    if type_ == "value_error":  # of StrictModel.problems, which name setting, rule and remedy
        return f"{key}.{rule}" if key else rule
    if type_.startswith(_CHOICE):
        tag = type_.removeprefix(_CHOICE)
        return str(Problem(f"{key}.{tag}", value.get(tag) if isinstance(value, Mapping) else value, rule))
    remedy = "give a list, e.g. [a,b]" if type_ == "tuple_type" else ""
    if type_ == "string_type" and isinstance(value, (bool, int, float)):
        remedy = f"write it in quotes, and these in quotes for the shell: \"{key}='...'\""
    return str(Problem(key, value, rule, remedy))


def first_problem(error: ValidationError) -> str:
    """Where the first problem is, and the rule that was broken there."""
    problem = error.errors()[0]
    return ": ".join(filter(None, [".".join(_path(problem)), rule_of(problem)]))


def _path(problem: Any) -> list[str]:
    return [str(part) for part in problem["loc"] if not str(part).startswith(_CHOICE)]


def rule_of(problem: Any) -> str:
    """The rule that one of pydantic's errors says was broken: `must be greater than 0`."""
    message: str = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return message[:1].lower() + message[1:]


def settings_at(kind: type[StrictModel], path: Sequence[str]) -> set[str]:
    """The names of the settings and sections at a path below a section, of all choices where it depends on one."""
    return {field.alias or name for section in sections_at(kind, path) for name, field in section.model_fields.items()}


def sections_at(kind: type[StrictModel], path: Sequence[str]) -> list[type[StrictModel]]:
    """The typed sections at a path below another: several where they depend on a choice, none for a plain value. Keys
    of a mapping of sections are skipped.
    """
    sections = [kind]
    for part in path:
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        inner = [section for field in fields for section in _sections_in(field.annotation)]
        sections = inner if fields else sections
    return list(dict.fromkeys(sections))


def _sections_in(annotation: Any) -> list[type[StrictModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, StrictModel) else []
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]
