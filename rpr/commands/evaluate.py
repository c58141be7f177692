"""rpr-cli evaluate: translate and score a trained run again, from a checkpoint or an average of the last N."""

import hashlib
import json
import re

from pydantic_core import to_json

from rpr.commands.printing import scores_text
from rpr.config.commands import EvaluateConfig
from rpr.config.train import OF_TRANSLATIONS, REPORTED, TrainConfig
from rpr.io.atomic import exclusive, replace_file
from rpr.io.escape import note
from rpr.kinds import TEXT
from rpr.model.positions import changed_after_training
from rpr.model.scheme_check import check_hooks
from rpr.paths import user_path
from rpr.records.scores import search_in_words
from rpr.report.render import wrapped
from rpr.runs import lifecycle, loading
from rpr.scoring.metrics import check_tokenizer
from rpr.scoring.run import check_scorable, evaluated_model, score_run
from rpr.validation import validate

_LONGEST_NAME = 200  # bytes; file systems allow 255


def run(config: EvaluateConfig) -> None:
    """Prints the scores and writes them with the hypotheses to <run>/evaluations/<typed settings>; if these are too
    many for the name of a folder, their beginning and a hash. The run's record is not changed.
    """
    # 1. The run's settings with the typed ones.
    run_dir = user_path(config.run).absolute()
    trained = loading.config_of(run_dir, config)
    names = {*OF_TRANSLATIONS, *REPORTED, "text_tokens", "matmul_precision"}
    requested = config.model_dump(include=names, exclude_none=True)
    typed = config.model_dump(include={*names, "splits", "average_checkpoints"}, exclude_none=True)
    if config.splits is not None:
        requested["test_splits"] = config.splits
    if config.context_lengths is not None:
        requested["stride"] = config.stride  # which goes with the lengths
    position = changed_after_training(trained.position, config.position or {})
    changed = {"position": position.model_dump(), "evaluation": trained.evaluation.model_dump() | requested}
    trained = validate(TrainConfig, trained.model_dump() | changed)
    check_tokenizer(trained)
    read = {*trained.effective()["evaluation"], *REPORTED, "matmul_precision", "splits", "average_checkpoints"}
    if unread := [name for name in typed if name not in read]:
        note(f"without effect on {run_dir.name}: {', '.join(unread)}")
    # 2. Its data and weights.
    data, model, checkpoint = loading.load(trained, run_dir, config.average_checkpoints)
    if config.position:
        checkpoint += f", positions: {position.label}"
        typed["position"] = config.position
    system = evaluated_model(trained, model, checkpoint)
    # 3. A folder for what is typed, and for what else makes another result of it.
    typed |= {"precision": system.precision} if system.precision != "32" else {}
    if loading.corpus_change(run_dir, loading.record_of(run_dir), data):  # the scores of the run's own corpus are kept
        typed["corpus"] = data.meta.key[:12]
    name = re.sub(r"[^\w.]+", "-", json.dumps(typed)).strip("-") or "as_trained"
    if len(name.encode()) > _LONGEST_NAME:
        name = f"{name[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    # 4. What cannot be scored is refused before anything is.
    documents = trained.data.kind is TEXT
    for split in config.splits or ():
        data.split(split) if documents else data.text(split)
    check_scorable(trained, data)
    for tried in trained.sites:
        check_hooks(*tried)
    for line in lifecycle.untrained(trained) if config.context_lengths else ():
        note(f"warning: {line}")
    # 5. Score, write, print.
    out_dir = run_dir / "evaluations" / name
    with exclusive(out_dir, "*"):
        scored = score_run(trained, data, system, out_dir)
        document = to_json(scored, indent=2).decode()
        replace_file(out_dir / "scores.json", document + "\n")
    if config.format == "json":
        print(document)
        return
    how = ("" if documents else f"{search_in_words(trained.evaluation)}, ") + f"precision {system.precision}"
    print("\n".join(wrapped([f"{run_dir.name}: {system.checkpoint}, {how}"])))
    print(scores_text(scored.scores, scored.by_length, scored.by_context))
