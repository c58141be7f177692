"""The choices of conf/, the paper's settings (numbers copied by hand), error messages, defaults, and run ids."""

import shlex
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from rpr.cli import app
from rpr.compose import hydra_bridge
from rpr.compose.composition import compose_train
from rpr.config import commands as commands_config
from rpr.config import train as config
from rpr.config.train import TrainConfig, config_from_record
from rpr.errors import ConfigError
from rpr.model.positions import COLOURS
from rpr.paths import data_dir
from rpr.validation import validate
from tests.fake_records import edited
from tests.model.scheme_variants import CAUSAL
from tests.shapes import scheme

CONF = data_dir("conf")
PARSER = OverridesParser.create()


def choices(group):
    return sorted(path.stem for path in (CONF / group).glob("[!_]*.yaml"))


GROUPS = {group: choices(group) for group in ("model", "position", "hardware", "data", "optim", "logger", "evaluation")}
FOUR_LAYERS = {"rope_none", "rope_local", "relative_local"}
DOCUMENTS = {"python_library", "text", "wikitext103", "fineweb_edu"}
LOCAL_ONLY = {"custom", "text", "multi30k_en_fr", "wmt_mini_en_de", "wmt_mini_en_fr"}  # refused without data.path


def train(*overrides):
    return compose_train(list(overrides))


def test_every_choice_composes_and_validates():
    """A row has one choice of each group, and some of the positions in the encoder."""
    identities, either = set(), [name for name in GROUPS["position"] if name not in (*CAUSAL, *FOUR_LAYERS)]
    encoders = either[: len(GROUPS["position"]) // 3]
    groups = GROUPS | {"position": [name for name in GROUPS["position"] if name not in encoders]}
    number_of_rows = max(map(len, groups.values()))
    for number in range(number_of_rows):
        row = {group: names[number % len(names)] for group, names in groups.items()}
        more = ["data.path=/a/folder"] if row["data"] in LOCAL_ONLY else []
        more += ["model.num_layers=4"] if row["position"] in FOUR_LAYERS else []
        documents = row["data"] in DOCUMENTS
        encoder = "none" if documents or not encoders else encoders.pop()
        more += ["model.architecture=decoder_only"] if documents else [f"position.encoder={encoder}"]
        cfg = train(*(f"{group}={choice}" for group, choice in row.items()), *more)
        for group in ("model", "hardware", "data"):
            assert getattr(cfg, group).name == row[group], row
        decoder, shape = cfg.position.decoder, cfg.transformer(50)
        assert (decoder.name, shape.decoder_positions) == (row["position"], decoder) and decoder.kind in COLOURS
        assert shape.encoder_positions == (None if documents else cfg.position.encoder)
        assert documents or (cfg.position.encoder.name == encoder and cfg.position.encoder.kind in COLOURS)
        assert row["optim"] in (cfg.optim.name, f"{cfg.optim.name}_multi30k"), row
        modes = {"wandb": "online", "wandb_offline": "offline"}
        assert cfg.logger.mode == modes.get(row["logger"], row["logger"])
        identities.add(cfg.run_id)
    assert len(identities) == number_of_rows and not encoders


@pytest.fixture(scope="module")
def plain():
    return settings_of("train")


@cache
def composed(command, *choices):
    return OmegaConf.to_container(hydra_bridge.compose(command, choices), resolve=True)


def settings_of(typed):
    """What a command line composes to; composed once per choices of groups."""
    command, *words = shlex.split(typed)
    choices = [word for word in words if word.partition("=")[0] in GROUPS]
    parsed = PARSER.parse_overrides([word for word in words if word not in choices])
    return edited(composed(command, *choices), {one.key_or_group: one.value() for one in parsed})


# --- the paper's settings, from its section 4 (and tensor2tensor where it leaves a gap)


@pytest.mark.parametrize("model, shape, position, steps, averaged, interval", [
    ("big", (1024, 16, 4096, 0.3), (8, "shared_by_heads"), 300_000, 20, 600),
    ("base", (512, 8, 1024, 0.1), (16, "per_head"), 100_000, 1, None),
])  # fmt: skip
def test_models_of_the_paper(model, shape, position, steps, averaged, interval):
    cfg = train(f"model={model}", "hardware=8xgpu")
    model, optim = cfg.model, cfg.optim
    assert (optim.adam_beta1, optim.adam_beta2, optim.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (optim.warmup_steps, optim.learning_rate_scale, optim.label_smoothing) == (4000, 1.0, 0.1)
    assert (optim.microbatches_per_step, optim.max_tokens_per_microbatch) == (8, 4096)  # 8 GPUs
    assert optim.gradient_clip_norm is None
    assert (model.num_layers, model.d_model // model.num_heads) == (6, 64)
    assert (model.norm, model.norm_epsilon) == ("post", 1e-6)
    assert (cfg.data.name, cfg.data.vocabulary_size) == ("wmt14_en_de", 32768)
    assert (cfg.data.validation_name, cfg.data.test_name) == ("newstest2013", "newstest2014")
    assert (cfg.evaluation.beam_size, cfg.evaluation.length_penalty) == (4, 0.6)
    assert (cfg.position.relative_keys, cfg.position.relative_values) == (True, True)
    assert cfg.position.absolute == "none"
    assert (cfg.hardware.accelerator, cfg.hardware.num_ranks) == ("gpu", 8)
    assert (model.d_model, model.num_heads, model.d_ff, model.dropout) == shape
    assert (cfg.position.clip_distance, cfg.position.tables) == position
    assert (optim.max_steps, optim.average_checkpoints) == (steps, averaged)
    if interval is not None:  # the paper's ten minutes, at 1.0 s a step of its eight GPUs
        assert (optim.checkpoint_every_n_minutes, optim.checkpoint_every_n_steps) == (None, interval)
        assert optim.keep_checkpoints == 20


def test_big_model_has_less_dropout_for_french():
    assert train("model=big", "data=wmt14_en_fr").model.dropout == 0.1
    assert train("model=big", "data=wmt14_en_fr", "model.dropout=0.2").model.dropout == 0.2


@pytest.mark.parametrize("position, absolute, keys, values", [
    ("absolute", "sinusoidal", False, False),  # Table 1, baseline
    ("relative", "none", True, True),  # Table 1 and 2; Table 3 yes, yes
    ("relative_keys", "none", True, False),  # Table 3
    ("relative_values", "none", False, True),  # Table 3
    ("none", "none", False, False),  # Table 3 no, no
    ("absolute_and_relative", "sinusoidal", True, True),  # section 4.2
    ("learned", "learned", False, False),
])  # fmt: skip
def test_position_schemes_of_the_papers_tables(position, absolute, keys, values):
    found = scheme(position)
    assert (found.absolute, found.relative_keys, found.relative_values) == (absolute, keys, values)


# --- error messages


ROWS = Path(__file__).with_name("invalid.tsv").read_text().splitlines()
INVALID = [row.split("\t") for row in ROWS if not row.startswith("# ")]


@pytest.mark.parametrize("typed, answer", INVALID, ids=[row[0] for row in INVALID])
def test_invalid_setting(typed, answer):
    kind = app._config_class(typed.split()[0])
    with pytest.raises(ConfigError) as error:
        validate(kind, settings_of(typed.replace("LONG", 300 * "a")))
    line = app.format_user_error(error.value, kind)
    part = answer.removeprefix("...")
    assert part in line if answer.startswith("...") else line.startswith(part), line
    assert "\n" not in line


# --- form


def sections(kind=config.StrictModel):
    assert commands_config  # its sections are among them once it is imported
    return [section for one in kind.__subclasses__() for section in (one, *sections(one))]


LATER = {"norm_type", "qk_norm", "initial_std", "key_offset", "key_offset_first", "key_offset_at", "window", "sink"}
LATER |= {"clip_logits", "clip_queries", "long_factors", "fast_dev_run", "compile"}


def test_typed_configuration_is_frozen_and_has_neither_defaults_nor_extra_keys(plain):
    """Every field is required, so every default is in conf/, but for those that committed records lack: conf/ has the
    same, and at it neither records nor run ids say it.
    """
    assert len(sections()) > 10
    for section in sections():
        assert section.model_config["frozen"] and section.model_config["extra"] == "forbid", section
        later = {name for name, field in section.model_fields.items() if not field.is_required()}
        assert later <= LATER or section.__module__ == "rpr.sweep.spec", section  # of a sweep's file
    config = validate(TrainConfig, plain)
    assert (plain["model"]["norm_type"], plain["model"]["qk_norm"]) == ("layernorm", False)
    assert not {"norm_type", "qk_norm"} & config.model_dump(mode="json")["model"].keys()
    del plain["model"]["norm_type"], plain["model"]["qk_norm"]
    assert validate(TrainConfig, plain) == config
    assert validate(TrainConfig, edited(plain, {"model.qk_norm": True})).run_id != config.run_id


# --- run ids


def test_run_id_depends_on_what_affects_the_result(plain):
    first = validate(TrainConfig, plain)
    assert validate(TrainConfig, deepcopy(plain)).run_id == first.run_id
    assert len(first.run_id) == 8 and int(first.run_id, 16) >= 0
    for key, value in {
        "name": "x", "sweep": "y", "runs_dir": "/z", "data.cache_dir": "/c", "logger.mode": "none",
        "logger.project": "p", "logger.tags": ["t"], "fast_dev_run": True,
        "evaluation.length_buckets": [5], "evaluation.bootstrap_samples": 100,
    }.items():  # fmt: skip
        assert validate(TrainConfig, edited(plain, {key: value})).run_id == first.run_id, key
    relevant = {
        "seed": 2, "model.dropout": 0.2, "model.num_layers": 3, "position.clip_distance": 3,
        "position.tables": "shared_by_heads", "data.train_limit": 100,
        "data.synthetic.seed": 2, "optim.max_steps": 701, "optim.microbatches_per_step": 2,
        "optim.average_checkpoints": 2,
        "hardware.precision": "bf16", "hardware.threads": 1, "evaluation.beam_size": 5,
    }  # fmt: skip
    ids = {key: validate(TrainConfig, edited(plain, {key: value})).run_id for key, value in relevant.items()}
    assert len({first.run_id, *ids.values()}) == 1 + len(relevant), ids
    paths = [compose_train(["data=custom", f"data.path={path}"]) for path in ("/corpus", "/corpus/", "/other")]
    assert paths[0].run_id == paths[1].run_id != paths[2].run_id, "a slash at the end, as completion writes it"


SPELLINGS = {  # words with which a run is the one without the last, and what the note names
    "position=rope position.scaling_factor=2": "position.scaling_factor",
    "position=relative position.clip_distance=0 position.random_positions=2048": "position.random_positions",
    "position=rope position.decoder=alibi position.decoder.encoder_form=asymmetric": "position.decoder.encoder_form",
    "position=rope position.query_log_floor=64": "position.query_log_floor",
    "evaluation.text_tokens=9": "evaluation.text_tokens",
    "evaluation.beam_size=1 evaluation.length_penalty=1": "evaluation.length_penalty",
    "hardware.precision=64 hardware.matmul_precision=high": "hardware.matmul_precision",
    "data=python_library model.architecture=decoder_only evaluation.beam_size=1": "evaluation.beam_size",
    "data=python_library model.architecture=decoder_only position=rope position.query_log_scale=0.1":
        "position.query_log_scale",
}  # fmt: skip


@pytest.mark.parametrize("words", SPELLINGS)
def test_two_spellings_of_a_run_have_one_id_and_a_note_names_what_has_no_effect(words):
    *first, last = words.split()
    one, other = train(*first), train(*first, last)
    assert one.run_id == other.run_id
    typed = [*first, last, "seed=3", "logger.tags=[a]", "position.name=x", "stop_after_minutes=9"]
    assert other.without_effect(typed) == [SPELLINGS[words]]


def test_run_id_depends_on_the_weights_a_run_starts_from(plain):
    def run(seed=1, **changes):
        origin = {"run": "runs/a", "run_id": f"a{seed}", "settings_id": "1a", "seed": seed, "positions": "RoPE"}
        origin |= {"steps": 9, "weights": f"b{seed}"} | changes
        return validate(TrainConfig, {**edited(plain, {"seed": seed}), "from": origin})

    first = run()
    assert first.label == "synthetic-tiny-relative-k16-from-1a-s1"
    assert run(run="elsewhere/a").run_id == first.run_id
    others = [validate(TrainConfig, plain), run(weights="b2"), run(run_id="a3")]
    assert len({first.run_id, *(other.run_id for other in others)}) == 4
    assert run(2).settings_id == first.settings_id != run(settings_id="2b").settings_id
    assert config_from_record(first.model_dump(mode="json")) == first


def test_bos_has_a_vector_of_its_own_in_models_of_documents():
    documents = ("data=python_library", "model.architecture=decoder_only", "optim=lm")
    pairs = train("model.architecture=decoder_only", "data=synthetic")
    learned, zero = train(*documents), train(*documents, "model.bos_vector=zero")
    vectors = [one.model.bos_vector for one in (pairs, learned, zero)]
    assert vectors == ["zero", "learned", "zero"] and learned.run_id != zero.run_id
    assert [config.transformer(260).zero_bos for config in (learned, zero)] == [False, True]


def test_a_learning_rate_sets_the_recipes_other_form_aside():
    def rates(*words):
        optim = train(*words).optim
        return optim.learning_rate, optim.learning_rate_scale

    assert rates("optim.learning_rate=2e-3") == (0.002, None)
    assert rates("optim=lm", "optim.learning_rate_scale=0.5") == (None, 0.5)
    with pytest.raises(ConfigError, match="set exactly one of them"):
        rates("optim.learning_rate=2e-3", "optim.learning_rate_scale=1")
