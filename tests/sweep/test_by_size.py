"""`by_size` of a sweep: the row that the training data fits into, and what is typed before it."""

import pytest

from rpr.cli import app
from rpr.compose.composition import compose_train
from rpr.errors import ConfigError
from rpr.sweep import spec
from tests.data.helpers import write_lines

ROWS = [
    {"up_to": 3, "settings": "optim.max_steps=10 seed=7", "takes": "a minute"},
    {"up_to": float("inf"), "settings": "optim.max_steps=20", "takes": "an hour"},
]
MADE = [spec.SizeRow(**row) for row in ROWS]


@pytest.mark.parametrize("pairs, steps", [(3, "10"), (4, "20")])
def test_row_is_that_of_the_number_of_training_pairs(tmp_path, pairs, steps):
    for split, count in (("train", pairs), ("validation", 1), ("test", 1)):
        write_lines(tmp_path / split, [(f"one {split} {n}", "eins") for n in range(count)])
    data = compose_train(["data=custom", f"data.path={tmp_path}", f"data.cache_dir={tmp_path}/cache"]).data
    settings, line = spec.settings_by_size(MADE, data, [])
    assert f"optim.max_steps={steps}" in settings and line.startswith(
        f"{pairs} training pairs: optim.max_steps={steps}"
    )
    assert "optim.max_steps=10" not in spec.settings_by_size(MADE, data, ["optim.max_steps=99"])[0]


@pytest.mark.parametrize("rows", [[], [ROWS[0]], [ROWS[1], ROWS[0]], [{"up_to": float("inf")}], "all"])
def test_rows_out_of_order_or_without_an_end_are_refused(tmp_path, rows):
    (tmp_path / "mine.yaml").write_text(f"jobs: [seed=1]\nby_size: {rows}".replace("inf", ".inf"))
    with pytest.raises(ConfigError, match="by_size: "):
        spec.read(str(tmp_path / "mine.yaml"))


def test_sweep_takes_and_says_them_and_what_is_typed_counts(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation", "test"):
        write_lines(tmp_path / "pairs" / split, [(f"one {split}", "eins")])
    words = ["sweep", "compare_k", "data=custom", "data.path=pairs", "data.name=mine", "--dry-run"]
    assert app.main([*words, "optim.max_steps=123"]) == 0
    printed, said = capsys.readouterr()
    jobs = [line for line in printed.splitlines() if line.startswith("rpr-cli train")]
    assert len(jobs) == 12 and all("optim.max_steps=123" in job and "data.vocabulary_size=2000" in job for job in jobs)
    assert "1 training pairs: data.vocabulary_size=2000" in said and "max_steps" not in said
