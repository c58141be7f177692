"""`position=`, `position.encoder=` and `position.decoder=` on the command line, in sweeps and in records: composition,
error messages, names and labels, settings that may change after training.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rpr.compose.composition import compose_train, expand_multirun
from rpr.compose.messages import format_user_error
from rpr.errors import ConfigError
from rpr.model.positions import COLOURS, Sides, changed_after_training
from rpr.model.positions import scheme as scheme_module
from rpr.records.position import OTHER, positions_of
from rpr.records.record import Record
from rpr.tracking.naming import flat, variant
from tests.fake_records import fake_document
from tests.shapes import choices, scheme


def test_choice_is_the_scheme_of_both_stacks() -> None:
    names = [choice for choice in choices() if scheme(choice).scheme != "vectors"] + ["relative"]
    for choice in names:
        config = compose_train([f"position={choice}"])
        shape = config.transformer(50)
        assert shape.encoder_positions == shape.decoder_positions == config.position
        assert config.position.name == choice
        assert config.position.kind in COLOURS


def test_incomplete_scheme_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheme_module, "REGISTERED", {})
    reason = r"the position scheme Unnamed lacks its name as a field, scheme: Literal\[.*and TITLE = .* and COLOUR = "
    with pytest.raises(ConfigError, match=reason):

        @scheme_module.register
        class Unnamed(scheme_module.Scheme):
            pass

    assert not scheme_module.REGISTERED


def test_each_stack_may_have_its_own_scheme() -> None:
    config = compose_train(
        ["position=relative", "position.encoder=alibi", "position.decoder=rope", "position.decoder.base=500"]
    )
    assert isinstance(config.position, Sides)
    label = "ALiBi in the encoder, RoPE, base 500 in the decoder"
    assert (config.position.name, config.position.label, variant(config)) == ("alibi-rope", label, label)
    assert config.label == "synthetic-tiny-alibi-rope-s1"
    shape = config.transformer(50)
    assert (shape.encoder_positions.name, shape.decoder_positions.name) == ("alibi", "rope")
    assert flat(config)["decoder_base"] == 500.0
    # a stack that is not given has the scheme of `position=`
    one = compose_train(["position=relative", "position.decoder=none", "position.clip_distance=3"]).position
    assert (one.encoder.k, one.decoder.kind) == (3, "none")


def test_equal_sides_are_the_same_run_as_one_choice() -> None:
    rope = compose_train(["position=rope"])
    both = compose_train(["position=none", "position.encoder=rope", "position.decoder=rope"])
    assert (both.position, both.run_id) == (rope.position, rope.run_id)
    assert compose_train(["position=rope", "position.encoder=null"]) == rope


def test_sides_can_be_swept() -> None:
    jobs = expand_multirun(["position=none", "position.encoder=rope,alibi"])
    assert [compose_train(job).position.name for job in jobs] == ["rope-none", "alibi-none"]


@pytest.mark.parametrize(
    "overrides, beginning",
    [
        (["position=rope", "position.base=0"], "position.base: invalid value 0: must be greater than 1"),
        (["position=rope", "position.rotated_share=0.3"], "position.rotated_share: 0.3 of a head's 32 dimensions"),
        (["position=rope", "position.scaling_factor=2"], "position.scaling_factor: 2 has no effect with"),
        (["position=rope", "position.scheme=nope"], "position.scheme: invalid value 'nope': no such scheme"),
        (["position=rope", "+position.turns=1"], "position.turns: no such setting; available: absolute, base, layout"),
        (["position=_base"], "position.scheme: invalid value None"),
        (["position.encoder=ropes"], "position: no such choice 'ropes'; did you mean rope?"),
        (["position.encoder=../model/tiny"], "position: ../model/tiny is outside conf/position/"),
        (["position=alibi", "model.num_heads=1", "position.encoder_form=one_side_per_head"], "position.encoder_form: "),
        (
            ["position=none", "position.decoder=rope", "position.decoder.rotated_share=0.3"],
            "position.decoder.rotated_share: 0.3 of a head's 32 dimensions",
        ),
        (["position=t5", "position.buckets=6"], "position.buckets: invalid value 6: must be a multiple of 4"),
        (["position=t5", "position.max_distance=8"], "position.max_distance: 8 leaves no distances for the"),
        (["position=t5", "hardware=1xgpu", "hardware.attention=triton"], "hardware.attention: triton does not"),
        (
            ["position.encoder=rope", "position.decoder=none", "position.clip_distance=4"],
            "position.clip_distance: has no effect, since encoder and decoder have positions of their own",
        ),
        (["position=rope", "position.scaling=ntk"], "position.scaling: ntk has no effect with"),
    ],
)  # fmt: skip
def test_error_message_is_one_line_that_starts_with_the_setting(overrides: list[str], beginning: str) -> None:
    with pytest.raises(Exception) as caught:
        compose_train(overrides)
    message = format_user_error(caught.value) or ""
    assert message.startswith(beginning) and "\n" not in message


def test_only_settings_without_parameters_may_change_after_training() -> None:
    rope = scheme("rope")
    scaled = changed_after_training(rope, {"scaling": "ntk", "scaling_factor": 2})
    assert scaled.label == "RoPE, ntk scaling by 2"
    sides = Sides(name="two", scheme="sides", encoder=scheme("relative"), decoder=rope)
    assert changed_after_training(sides, {"scaling": "linear", "scaling_factor": 4}).decoder.label.endswith("by 4")
    assert changed_after_training(rope, {}) is rope
    with pytest.raises(ConfigError, match=r"^position\.base: cannot be changed after training; available: scaling"):
        changed_after_training(rope, {"base": 5})
    with pytest.raises(ConfigError, match=r"^position\.scaling_factor: invalid value 0"):
        changed_after_training(rope, {"scaling_factor": 0})


def test_positions_of_records_have_kinds_and_labels() -> None:
    def record(position: dict[str, Any]) -> Record:
        document = fake_document("relative", 16)
        document["config"]["position"] = position
        return Record.model_validate_json(json.dumps(document), strict=True)

    rope, alibi, none = scheme("rope"), scheme("alibi"), scheme("none")
    sides = Sides(name="two", scheme="sides", encoder=alibi, decoder=none)
    records = [record(one.model_dump(mode="json")) for one in (rope, scheme("rope", base=50), none, sides, rope)]
    found = positions_of([*records, record({"name": "spiral", "scheme": "spiral", "arms": 3})])
    assert [one.kind for one in found] == ["rope", "rope", "none", "mixed", "rope", OTHER]
    assert found[0] == found[4] != found[1]
    assert [one.label for one in found[1:4]] == ["RoPE, base 50", "none", "ALiBi in the encoder, none in the decoder"]
    assert found[5].label == "spiral, arms = 3, scheme = spiral"
