"""The moving average of the weights against the sum over every step's weights; resumed, and used in validation only."""

import json
import shutil

import pytest
import torch

from rpr.errors import DataError
from rpr.runs import loading
from rpr.runs.checkpoints import averaged_weights, checkpoints, model_weights, moving_average
from rpr.training import fit
from rpr.training.module import TranslationModule
from tests.fake_records import fake_document

DECAY = 0.4  # reached by the warm-up at step 5
RECIPE = (
    "optim.max_steps=6", "optim.checkpoint_every_n_steps=1", "optim.keep_checkpoints=9", "optim.average_checkpoints=1",
    "optim.validate_every_n_steps=4",
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("one_thread")


def test_moving_average(tiny_config, small_data, tmp_path):
    config = tiny_config(*RECIPE, f"optim.ema_decay={DECAY}")
    seen = []

    def validate(model):
        seen.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
        return 1.0

    fit.fit(config, small_data, tmp_path / "run", validation_bleu=validate)
    found = checkpoints(tmp_path / "run" / "checkpoints")
    assert [step for step, _ in found] == [1, 2, 3, 4, 5, 6]
    expected = dict(TranslationModule(config, len(small_data.vocabulary)).model.named_parameters())  # the first weights
    for step, path in found:
        weights = model_weights(path)
        decay = min(DECAY, (1 + step) / (10 + step))
        expected = {name: decay * expected[name] + (1 - decay) * weights[name] for name in expected}
        kept = moving_average(path)
        torch.testing.assert_close(kept, expected)
        if step == 4:  # used for validation
            assert all(torch.equal(seen[0][name], kept[name]) for name in kept)
    # Training itself is not affected, and a resumed run has the same average.
    fit.fit(tiny_config(*RECIPE), small_data, tmp_path / "plain")
    plain = model_weights(checkpoints(tmp_path / "plain" / "checkpoints")[-1][1])
    assert all(torch.equal(model_weights(found[-1][1])[name], weight) for name, weight in plain.items())
    (tmp_path / "cut" / "checkpoints").mkdir(parents=True)
    shutil.copy(found[2][1], tmp_path / "cut" / "checkpoints")
    fit.fit(config, small_data, tmp_path / "cut")
    again = moving_average(checkpoints(tmp_path / "cut" / "checkpoints")[-1][1])
    assert all(torch.equal(again[name], weight) for name, weight in moving_average(found[-1][1]).items())

    weights, words = averaged_weights(tmp_path / "run", 1, DECAY)
    assert words == "moving average (decay 0.4) at step 6"
    assert all(torch.equal(weights[name], again[name]) for name in again)
    with pytest.raises(DataError, match=r"contains no moving average; it was written with optim\.ema_decay=null"):
        averaged_weights(tmp_path / "plain", 1, DECAY)


def test_moving_average_of_a_table_that_layers_share_fits_the_model(tiny_config, small_data, tmp_path):
    config = tiny_config(*RECIPE, "optim.max_steps=1", "optim.ema_decay=0.4", "position=t5", "model.num_layers=2")
    fit.fit(config, small_data, tmp_path)
    (tmp_path / "record.json").write_text(json.dumps(fake_document()))
    model, _ = loading.model_of(config, tmp_path, None, len(small_data.vocabulary))
    kept = moving_average(checkpoints(tmp_path / "checkpoints")[-1][1])
    assert all(torch.equal(kept[name], weight) for name, weight in model.named_parameters())
    assert len(dict(model.named_parameters(remove_duplicate=False))) > len(kept)


def test_buffers_are_not_averaged(tiny_config, small_data, tmp_path):
    """As a user's own embeddings may have them."""
    fit.fit(tiny_config(*RECIPE, "optim.max_steps=1", "optim.ema_decay=0.4"), small_data, tmp_path)
    [(_, path)] = checkpoints(tmp_path / "checkpoints")
    document = torch.load(path, weights_only=True)
    document["state_dict"]["model.table"] = torch.arange(3.0)
    torch.save(document, path)
    weights, _ = averaged_weights(tmp_path, 1, 0.4)
    assert weights["table"].tolist() == [0, 1, 2]
    assert all(torch.equal(weights[name], weight) for name, weight in moving_average(path).items())
