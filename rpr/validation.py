"""Typed sections of settings: frozen, extra keys refused, and a refusal is one line that names the dotted key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from rpr.errors import ConfigError, did_you_mean
from rpr.migrations import renamed_to

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


def validated(kind: type[S], settings: Mapping[str, Any], *, at: str = "") -> S:
    """Plain settings as a typed section, which stands at a dotted key.

    Raises:
        ConfigError: one line that names the dotted key, the value, the rule and the choices.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        before = f"{at}." if at else ""
        raise ConfigError("; ".join(before + _problem(kind, problem) for problem in _own(error)[:3])) from None


def _own(error: ValidationError) -> list[Any]:
    """The problems, without those that a list is said to be too short because one of its values is refused."""
    problems: list[Any] = list(error.errors())
    refused = {problem["loc"][:-1] for problem in problems}
    return [one for one in problems if one["type"] != "too_short" or one["loc"] not in refused]


def _problem(kind: type[Section], problem: Any) -> str:
    path = tuple(str(part) for part in problem["loc"])
    *sections, last = path or ("",)
    key = ".".join(part for at, part in enumerate(path) if not _is_tag(kind, path[:at], part))
    if problem["type"] == "extra_forbidden":
        names = {name for section in sections_at(kind, sections) for name in section.model_fields}
        if new := renamed_to(key):
            return f"{key}: renamed to {new}"
        return f"{key}: no such setting" + did_you_mean(last, names)
    if problem["type"] == "missing":
        return f"{key}: this setting is missing; every default stands in conf/"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}.{message}" if key else message
    if problem["type"] == "tuple_type":
        message = "give a list, like [a,b]"
    if problem["type"] == "scheme":
        value = problem["input"]
        scheme = value.get("scheme") if isinstance(value, Mapping) else value
        return f"{key}.scheme: {scheme!r} is refused; {message}"
    return f"{key}: {problem['input']!r} is refused; {message[0].lower() + message[1:]}"


def _is_tag(kind: type[Section], before: Sequence[str], part: str) -> bool:
    """Whether a part of a problem's place is not a setting's name but says which of several sections is meant."""
    found = sections_at(kind, before)
    return len(found) > 1 and part not in {name for section in found for name in section.model_fields}


def sections_at(kind: type[Section], path: Sequence[str]) -> list[type[Section]]:
    """The typed section at a dotted path of another: several where it depends on a choice, none for a plain value."""
    found = [kind]
    for part in path:
        if len(found) > 1 and (tagged := [one for one in found if one.__name__ and _tag(one) == part]):
            found = tagged
            continue
        annotations = [one.model_fields[part].annotation for one in found if part in one.model_fields]
        found = [section for annotation in annotations for section in _sections_in(annotation)]
    return found


def _tag(section: type[Section]) -> str | None:
    """The value of `scheme` that a section is for."""
    field = section.model_fields.get("scheme")
    tags = get_args(field.annotation) if field is not None else ()
    return str(tags[0]) if tags else None


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Section) else []
    return list(dict.fromkeys(section for inner in get_args(annotation) for section in _sections_in(inner)))
