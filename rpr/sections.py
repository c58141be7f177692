"""Typed sections of settings: frozen, extra keys refused, and a refusal is one line that names the dotted key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from rpr.errors import ConfigError, did_you_mean

S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def a_switch_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Else true would count as 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise PydanticCustomError("switch", "it is no switch that could be true or false")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def no_text_holds_a_nul(cls, value: Any) -> Any:
        """No file's name can hold one; a sweep's file or a record could bring it here, a shell could not."""
        if any(isinstance(text, str) and "\0" in text for text in (value if isinstance(value, list) else [value])):
            raise PydanticCustomError("nul", "it holds a NUL character")
        return value


def validated(kind: type[S], settings: Mapping[str, Any]) -> S:
    """Plain settings as a typed section.

    Raises:
        ConfigError: one line that names the dotted key, the value, the rule and the choices.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise ConfigError("; ".join(_problem(kind, problem) for problem in _own(error)[:3])) from None


def _own(error: ValidationError) -> list[Any]:
    """The problems, without those that a list is said to be too short because one of its values is refused."""
    problems: list[Any] = list(error.errors())
    refused = {problem["loc"][:-1] for problem in problems}
    return [one for one in problems if one["type"] != "too_short" or one["loc"] not in refused]


def _problem(kind: type[Section], problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        section = section_at(kind, problem["loc"][:-1])
        return f"{key}: no such setting" + did_you_mean(str(problem["loc"][-1]), section.model_fields)
    if problem["type"] == "missing":
        return f"{key}: this setting is missing; every default stands in conf/"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}.{message}" if key else message
    if problem["type"] == "tuple_type":
        message = "give a list, like [a,b]"
    return f"{key}: {problem['input']!r} is refused; {message[0].lower() + message[1:]}"


def section_at(kind: type[Section], path: tuple[Any, ...]) -> type[Section]:
    """The typed section at a dotted path of another."""
    for part in path:
        annotation = kind.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        kind = next(c for c in candidates if isinstance(c, type) and issubclass(c, Section))
    return kind
