"""rpr-cli rerun: repeat a run from its record in a new folder, and compare the results."""

import shlex
from itertools import count
from pathlib import Path

from rpr.commands import train
from rpr.commands.diff import lines_of
from rpr.compose.hydra_bridge import quote_text
from rpr.config.commands import RerunConfig
from rpr.config.train import config_from_record
from rpr.data.cache import cache_key
from rpr.io.escape import note
from rpr.paths import schemes_dir, user_path
from rpr.records.difference import difference, equal_losses, reproduced
from rpr.records.record import RECORD_NAME, RerunOf, read_record, record_path


def run(config: RerunConfig) -> None:
    """Trains and scores the recorded configuration again; exits with 1 if the results are not the same to the last bit,
    after a table of all that differs (commit, versions, machine, corpus, scores).
    """
    # 1. The record's configuration in this command's folders; without a sweep, and without W&B, where the rerun would
    #    write to the original's run: both have the same ID.
    path = record_path(user_path(config.run))
    record = read_record(path)
    folders = {"path": config.data_path, "cache_dir": config.cache_dir}
    data = record.config["data"] | {name: folder for name, folder in folders.items() if folder is not None}
    logger = record.config["logger"] | {"mode": "none"}
    changes = {"data": data, "logger": logger, "stop_after_minutes": None, "sweep": None, "runs_dir": config.runs_dir}
    typed = config_from_record(record.config | changes, path)
    # 2. Another corpus is said before days of training.
    if record.data is not None and (key := cache_key(typed.data)) != record.data.key:
        note(f"not as recorded: the corpus, key {key[:12]} here and {record.data.key[:12]} in the record")
    # 3. The run, in the first folder without a record, or with that of an unfinished rerun, which is resumed.
    stem = user_path(typed.runs_dir).absolute() / f"{typed.run_dir_name}-rerun"
    for run_dir in (Path(f"{stem}{number}") for number in count(1)):
        earlier = read_record(run_dir / RECORD_NAME) if (run_dir / RECORD_NAME).exists() else None
        if earlier is None or (earlier.status != "finished" and earlier.run_id == typed.run_id):
            break
    given = config.model_dump(exclude={"run"}, exclude_none=True)
    words = [f"{key}={quote_text(text)}" for key, text in given.items()]
    words += [f"schemes_dir={folder}" for folder in [schemes_dir()] if folder is not None]
    command = shlex.join(["rpr-cli", "rerun", config.run, *words])
    rerun_of = RerunOf(run_id=record.run_id, started=record.started)
    run_dir = train.run(typed, command=command, run_dir=run_dir, rerun_of=rerun_of)
    # 4. Its results and those of the record.
    if record.outcome is not None:
        note(f"{path}: {record.outcome}; it has no results to compare with")
        return
    rows = difference(record, read_record(run_dir / RECORD_NAME))
    common, equal = equal_losses(path, run_dir / RECORD_NAME)
    if not reproduced(rows) or equal < common:
        print("\n".join(["", "Different:", *lines_of(rows, "record", "rerun")]))
        note(f"{run_dir.name}: its results differ from those of {path}")
        raise SystemExit(1)
    scores = sum(row.kind == "score" and row.same for row in rows)
    print(f"\nBit-identical: {scores} scores, training and validation loss, and {equal} logged losses.")
