"""`position=`, `position.encoder=` and `position.decoder=` on the command line and in sweeps: composition,
registration, names and labels, settings that may change after training (refused command lines: system/refused.tsv).
"""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rpr.compose.composition import compose, compose_train, expand_multirun
from rpr.errors import ConfigError
from rpr.model.positions import SCHEMES, Sides, Site, changed_after_training, code_of, codes, digest
from rpr.model.positions import scheme as scheme_module
from rpr.model.scheme_check import check_hooks
from rpr.tracking.mirror import flat, variant
from tests.shapes import COMMON, choices, scheme

IMPORTS = "from typing import ClassVar, Literal\nfrom rpr.model.positions.scheme import Scheme, Tables, register\n"
HEAD = "TITLE = 'odd'\n COLOUR = '#010203'\n scheme: Literal['odd']\n"
BIAS = "def distance_tables(self, parameters, site, max_distance, device):\n  import torch\n  "
WRONG = {  # the body of a class, and what its registration says
    "misspelt hook": ("def distance_table(self): pass", "has distance_table, .* did you mean distance_tables"),
    "helper": ("def helper(self): pass", "has helper, which is no part of the interface.*begins with an underscore"),
    "method for a property": ("def has_bias(self): return False", "defines has_bias without @property"),
    "bias of keys alone": (
        "def key_bias(self, projected, parameters, site, before): return before[..., None] + 1",
        "defines key_bias without projections",
    ),
    "name": ("scheme: Literal['rope']", "has the name 'rope' of another scheme"),
}


@pytest.fixture
def defined(monkeypatch, tmp_path):
    """A scheme that is defined and registered by the body of its class."""

    def define(body):
        monkeypatch.setattr(scheme_module, "REGISTERED", dict(scheme_module.REGISTERED))
        file = tmp_path / "mine.py"
        file.write_text(f"{IMPORTS}@register\nclass Odd(Scheme):\n {HEAD} {body}\n")
        spec = importlib.util.spec_from_file_location("mine", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "mine", module)
        spec.loader.exec_module(module)
        return module.Odd(name="odd", scheme="odd", **COMMON)

    return define


@pytest.mark.parametrize("body, message", WRONG.values(), ids=WRONG)
def test_registration_refuses(body, message, defined):
    before = dict(scheme_module.REGISTERED)
    with pytest.raises(ConfigError, match=f"^mine: the position scheme Odd .*({message})"):
        defined(body)
    assert before == scheme_module.REGISTERED


PREPARE = "def prepare(self, q, k, positions, parameters, site): return "
PARAMETERS = "def parameters(self, site):\n  import torch\n  return {{'a': {}}}\n "
EMBEDDINGS = (
    "def embeddings(self, d_model):\n  import torch\n  class Odd(torch.nn.Module):\n"
    "   def __init__(self):\n    super().__init__()\n    pass\n   def forward(self, first, pieces):\n    "
)
TABLE = BIAS + "r = torch.arange(-max_distance, max_distance + 1.0)\n  "
ALONE, STEPS = "a text alone gives other", "token by token, with cached keys"
HOOKS = {  # hooks that train silently, and what is said before training
    "unused parameter": (PARAMETERS.format("torch.ones(2, 1)") + PREPARE + "q, k", "parameter 'a' gets no gradient"),
    "gradient of a root": (
        PARAMETERS.format("torch.zeros(2, 1)") + TABLE + "return Tables(bias=parameters['a'].sqrt() * r)",
        "the parameter 'a' gets an infinite gradient",
    ),
    "max_distance": (TABLE + "return Tables(bias=(r / max_distance).expand(2, -1))", ALONE),
    "far": (TABLE + "return Tables(bias=(r / max(max_distance, 2000)).expand(2, -1))", "bias that depend on max_dist"),
    "width": (TABLE + "return Tables(keys=r[:, None].expand(-1, 3))", r"key_table: shape \[17, 3\] is not \[R, 4\]"),
    "keys of the batch": (PREPARE + "q, k - k.mean(0, keepdim=True)", ALONE),
    "embeddings": (EMBEDDINGS + "return pieces.cumsum(-1)[..., None] * torch.arange(8.0)\n  return Odd()", STEPS),
    "drawn when built, and not saved": (
        EMBEDDINGS.replace("pass", "self.a = torch.randn(8)")
        + "return (first + torch.arange(pieces.shape[1]))[:, None] * self.a\n  return Odd()",
        "with the same parameters and buffers another model gives other values",
    ),
}  # fmt: skip
SITE = Site(num_layers=1, num_heads=2, d_model=8, causal=True)


@pytest.mark.parametrize("body, message", HOOKS.values(), ids=HOOKS)
def test_hooks_are_tried_before_training(body, message, defined):
    odd = defined(body)
    with pytest.raises(ConfigError, match=rf"^position\.decoder: the scheme odd of position=odd: .*({message})"):
        check_hooks(odd, SITE, longest=1500)


def test_tables_are_tried_up_to_the_lengths_at_hand(defined):
    check_hooks(defined(HOOKS["far"][0]), SITE, longest=1000)


ONE_OF_EACH = {scheme(choice).scheme: choice for choice in choices()} | {"window": "rope_local"}


@pytest.mark.parametrize("choice", ONE_OF_EACH.values())
def test_hooks_of_every_scheme_pass(choice):
    state = torch.get_rng_state()
    for causal in (False, True):
        if causal or not scheme(choice).CAUSAL_ONLY:
            check_hooks(scheme(choice), replace(SITE, causal=causal))
    assert torch.equal(torch.get_rng_state(), state)


def test_digest_is_of_the_syntax_tree(tmp_path):
    source = "import math\n\nlabel = f'size {math.pi:.2f}'\n"
    digests = []
    for text in (source, source.replace("import", "# about\nimport"), source.replace("size {", "Size {")):
        tmp_path.joinpath("odd.py").write_text(text)
        digests.append(digest(tmp_path / "odd.py"))
    assert digests[0] == digests[1] != digests[2]


def test_versions_name_the_schemes_of_the_project():
    assert codes((scheme("alibi"), scheme("rope_none"))) == {"alibi": "1", "pattern": "1", "rope": "1", "vectors": "1"}
    extended = type("Extended", (SCHEMES["rope"],), {"__module__": __name__})
    assert code_of(extended) == f"{digest(Path(__file__))}+1"


def test_each_stack_may_have_its_own_scheme():
    """A stack that is not given has the scheme of `position=`."""
    config = compose_train(["position=rope", "position.encoder=alibi", "position.base=500"])
    assert isinstance(config.position, Sides)
    label = "ALiBi in the encoder, RoPE, base 500 in the decoder"
    assert (config.position.name, config.position.label, variant(config)) == ("alibi-rope", label, label)
    assert config.label == "synthetic-tiny-alibi-rope-s1"
    shape = config.transformer(50)
    assert (shape.encoder_positions.name, shape.decoder_positions.name) == ("alibi", "rope")
    assert flat(config)["decoder_base"] == 500.0


def test_equal_sides_are_the_same_run_as_one_choice():
    rope = compose_train(["position=rope"])
    both = compose_train(["++position.encoder=rope", "position.decoder=rope"])
    assert (both.position, both.run_id) == (rope.position, rope.run_id)
    last = ["position=rope", "position@position.encoder=t5", "position.encoder=null"]
    assert compose_train(last) == rope, "the last one counts"


def test_sides_and_layers_can_be_swept():
    jobs = expand_multirun(["position=none", "position.encoder=rope,alibi"])
    assert [compose_train(job).position.name for job in jobs] == ["rope-none", "alibi-none"]
    words = ["position=pattern", "position.layers=[rope,t5],[rope,none]", "position.entries.rope.base=5,7"]
    *_, last = jobs = expand_multirun(words)
    assert len(jobs) == 4 and compose_train(last).position.label == "in turn: RoPE, base 7; none"


def test_each_layer_may_have_its_own_scheme():
    config = compose_train(
        ["position=rope_none", "position.encoder=relative_rope", "model.num_layers=8",
         "position.encoder.entries.relative.clip_distance=3", "position.entries.rope.base=500"]
    )  # fmt: skip
    encoder, decoder = config.position.encoder, config.position.decoder
    assert encoder.label == "from the lowest layer up: relative, k = 3; RoPE"
    assert decoder.label == "RoPE, base 500, every 4th layer none"
    assert [one.name for one in encoder.of_layers(5)] == ["relative"] * 3 + ["rope"] * 2
    assert [one.name for one in decoder.of_layers(8)] == [*["rope"] * 3, "none"] * 2
    scaled = changed_after_training(config.position, {"scaling": "linear", "scaling_factor": 2})
    assert scaled.decoder.label == "RoPE, base 500, linear scaling by 2, every 4th layer none"
    two = compose_train(["position=pattern", "position.layers=[rope_1,rope_2]", "position.entries.rope_2.base=9"])
    assert flat(two)["rope_2_base"] == 9 and flat(two)["layers"] == "rope_1,rope_2"
    changes = {"scaling_factor": 2, "entries": {"rope_2": {"scaling": "ntk"}}}
    assert changed_after_training(two.position, changes).label == "in turn: RoPE; RoPE, base 9, ntk scaling by 2"
    for entries, key in (({"rope": {"base": 9}}, "rope.base"), ({"t5": {"scaling": "ntk"}}, "t5.scaling")):
        with pytest.raises(ConfigError, match=rf"^position\.entries\.{key}: cannot be changed after training"):
            changed_after_training(config.position, {"entries": entries})
    typed = compose("evaluate", ["run=x", "position.entries.rope_2.scaling=ntk", "position.scaling_factor=2"])
    assert typed["position"] == changes
    assert compose("evaluate", ["run=x", "position={scaling:ntk}"])["position"] == {"scaling": "ntk"}


def test_layers_are_known_by_what_they_do():
    one = scheme("pattern", layers=["t5", "none", "none", "t5"], repeat=False)
    two = scheme("pattern", layers=["t5_1", "none", "none", "t5_2"], repeat=False)
    assert one.identity() != two.identity(), "one table, or two"
    assert two.label == "from the lowest layer up: T5, table 1; 2 x none; T5, table 2"
    rotated = [scheme("pattern", layers=["rope_1", "none", last], repeat=False) for last in ("rope_1", "rope_2")]
    assert rotated[0].identity() == rotated[1].identity(), "without tables they are one scheme"


def test_only_settings_without_parameters_may_change_after_training():
    rope = scheme("rope")
    assert changed_after_training(rope, {}) is rope
    with pytest.raises(ConfigError, match=r"^position\.base: cannot be changed after training; available: long_"):
        changed_after_training(rope, {"base": 5})
    with pytest.raises(ConfigError, match=r"^position\.scaling_factor: invalid value 0"):
        changed_after_training(rope, {"scaling_factor": 0})


def test_rows_of_later_keys_count_in_an_encoder_alone(defined):
    odd = defined(TABLE + "return Tables(bias=(r.clamp(min=0) / max_distance).expand(2, -1))")
    check_hooks(odd, SITE)
    with pytest.raises(ConfigError, match=rf"^position\.encoder: .*{ALONE}"):
        check_hooks(odd, replace(SITE, causal=False))
