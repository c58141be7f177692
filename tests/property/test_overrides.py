"""Property of overrides: any text for any setting gives a validated configuration, or a one-line error."""

import json
from collections.abc import Iterator
from pathlib import Path

from hypothesis import example
from hypothesis import strategies as st

from rpr.compose.composition import compose_train
from rpr.compose.messages import format_user_error
from rpr.config.train import TrainConfig
from rpr.validation import StrictModel, sections_at
from tests.property.sizes import UNICODE, sized


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
    "float(1)", "tiny", "base", "relative", "synthetic", "bf16", "64", "\n", "\t", "\r", "\x00", "\u2028",
    "é", "漢", "\U0001f600",
]  # fmt: skip
JOINED = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)
VALUES = st.text(UNICODE, max_size=12) | JOINED | st.integers().map(str) | st.floats().map(str)
KEYS = st.sampled_from(sorted({*settings_below(TrainConfig), "hydra.run.dir", "hydra/launcher", "nothing", "model@x"}))
OVERRIDES = st.builds(
    lambda sign, key, value: f"{sign}{key}={value}", st.sampled_from(["", "", "", "+", "++", "~"]), KEYS, VALUES
)


@sized(5, st.lists(OVERRIDES, min_size=1, max_size=2))
@example(["seed=" + "9" * 5000])
@example(["data.test_name=" + "[" * 2000])
@example(["optim.learning_rate_scale=1e400"])
def test_any_override_gives_a_configuration_or_a_one_line_error(overrides):
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
