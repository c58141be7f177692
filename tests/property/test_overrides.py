"""Properties of overrides: any text for any setting gives a validated configuration, or a one-line error and exit code
2; the jobs of a sweep compose to the listed values.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from rpr.cli.positionals import quote_value
from rpr.compose.composition import compose, compose_train, expand_multirun
from rpr.compose.messages import format_user_error
from rpr.config.train import TrainConfig
from rpr.validation import StrictModel, sections_at
from tests.property.sizes import SIZES, Size


def settings_below(kind: type[StrictModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every section and every setting, dotted."""
    for name in kind.model_fields:
        yield ".".join((*path, name))
        for section in sections_at(kind, (name,)):
            yield from settings_below(section, (*path, name))


# Text with a meaning for Hydra, OmegaConf, YAML, pydantic or this project.
WORDS = [
    *"[]{}(),:=$'\"\\ .~@+-*&!%#|>?<_/", "${", "???", "null", "true", "no", "nan", "inf", "-1", "0", "1", "7", "1e400",
    "1e-400", "9" * 30, "9" * 5000, "0x1F", "1_0", "0.5", "seed", "${seed}", "${model.d_model}", "${oc.env:HOME}",
    "${oc.env:NOT_THERE}", "${oc.decode:3}", "choice(1,2)", "range(3)", "glob(*)", "interval(0,1)", "sort(3,2)",
    "float(1)", "tiny", "base", "relative", "synthetic", "bf16", "64", "\n", "\t", "\r", "\x00", "\u2028", "\ud800",
    "é", "漢", "\U0001f600",
]  # fmt: skip
VALUES = st.one_of(
    st.text(max_size=12),
    st.lists(st.sampled_from(WORDS), max_size=6).map("".join),
    st.integers().map(str),
    st.floats().map(str),
)
KEYS = st.sampled_from(sorted({*settings_below(TrainConfig), "hydra.run.dir", "hydra/launcher", "nothing", "model@x"}))
OVERRIDES = st.builds(
    lambda sign, key, value: f"{sign}{key}={value}", st.sampled_from(["", "", "", "+", "++", "~"]), KEYS, VALUES
)


@SIZES
def test_any_override_gives_a_configuration_or_a_one_line_error(size: Size) -> None:
    @size(12)
    @given(st.lists(OVERRIDES, min_size=1, max_size=2))
    @example(["seed=${seed}"])
    @example(["model=3"])
    @example(["~model=3"])
    @example(["data=null"])
    @example(["seed=range(1,5,0)"])
    @example(["seed=" + "9" * 5000])
    @example(["data.test_name=\ud800"])
    @example(["data.test_name=" + "[" * 2000])
    @example(["optim.learning_rate_scale=1e400"])
    def property_(overrides: list[str]) -> None:
        refusal: Exception | None = None
        try:
            config = compose_train(overrides)
        except Exception as error:
            refusal = error
        if refusal is not None:
            line = format_user_error(refusal)
            assert line and len(line.splitlines()) == 1, (overrides, refusal)
            return
        assert isinstance(config, TrainConfig)
        assert config.run_dir_name == Path(config.run_dir_name).name
        json.dumps(config.model_dump(mode="json"), allow_nan=False, ensure_ascii=False).encode()  # as in a record

    property_()


# Settings that accept any value of their type, and such values.
LISTED: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**31 - 1),
    "position.clip_distance": st.integers(0, 10**6),
    "optim.learning_rate_scale": st.floats(1e-3, 1e3),
    "position.relative_keys": st.booleans(),
    "data.train_limit": st.none() | st.integers(1, 99),
    "data.test_name": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8),
    "logger.tags": st.lists(st.sampled_from(["a", "b c", "x,y", "it's"]), max_size=3),
}
SWEEPS = st.lists(st.sampled_from(sorted(LISTED)), min_size=1, max_size=2, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: st.lists(LISTED[key], min_size=1, max_size=2) for key in keys})
)


def in_hydra_syntax(value: Any) -> str:
    if isinstance(value, str):
        return quote_value(value)
    if isinstance(value, list):
        return f"[{','.join(map(in_hydra_syntax, value))}]"
    return json.dumps(value)


@SIZES
def test_jobs_of_a_sweep_compose_to_the_listed_values(size: Size) -> None:
    @size(4)
    @given(SWEEPS)
    def property_(sweep: dict[str, list[Any]]) -> None:
        jobs = expand_multirun([f"{key}={','.join(map(in_hydra_syntax, values))}" for key, values in sweep.items()])
        expected = [dict(zip(sweep, row, strict=True)) for row in itertools.product(*sweep.values())]
        assert len(jobs) == len(expected)
        for job, values in zip(jobs, expected, strict=True):
            settings = compose("train", job)
            for key, value in values.items():
                found: Any = settings
                for part in key.split("."):
                    found = found[part]
                assert found == value and type(found) is type(value), (job, key)

    property_()
