"""rpr-cli report run=runs/...: measurements and plots of what one run's position representations learned."""

import json
import sys
from pathlib import Path

from rpr.checks.positions import DEFINITIONS, measure
from rpr.config.commands import ReportConfig
from rpr.io.atomic import replace_file
from rpr.progress import Progress
from rpr.records.position import position_of
from rpr.report.plots import position_figure, rendered
from rpr.runs import loading, runtime

MIN_DISTANCE = 8  # shown even for the smallest k: for k = 0, 2k would be no distance at all


def report(config: ReportConfig, run_dir: Path) -> None:
    """Writes positions.svg and positions.json to the run's folder, and prints what it is of, or the JSON document.
    Raises RecordError if there is no readable record or the folder cannot be written, RunError if the run failed or was
    interrupted, DataError for no checkpoint, or an incompatible one, or no data.
    """
    data, trained = loading.load_with_examples(run_dir, config, "validation", config.validation_sentences)
    record, position, checkpoint = trained.record, trained.config.position, trained.checkpoint
    k = position.k
    with Progress(len(trained.sources), trained.items, "attention") as bar:
        numbers = measure(
            trained.model,
            trained.pairs,
            max_distance=config.max_distance if k is None else min(config.max_distance, max(MIN_DISTANCE, 2 * k)),
            max_tokens_per_batch=trained.config.evaluation.max_tokens_per_batch,
            device=runtime.torch_device(config.hardware),
            progress=bar.reach,
        )
    facts = {
        "name": record.name,
        "run_id": record.run_id,
        "status": record.status,
        "checkpoint": checkpoint,
        "position": position.model_dump(mode="json"),
        "validation_set": data.set_name("validation"),
        "synthetic": record.synthetic,
        "precision": "64" if config.hardware.precision == "64" else "32",  # also on a GPU, where training has bf16
        "matmul_precision": runtime.matmul_precision(config.hardware),
    }
    # Six digits; a line for each key, to be diffable.
    numbers = json.loads(json.dumps(numbers), parse_float=lambda digits: float(f"{float(digits):.6g}"))
    document = {"run": facts, "definitions": DEFINITIONS, **numbers}
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in document.items()]
    facets = [position_of(record).label, checkpoint]
    facets += [] if record.status == "finished" else ["not finished"]
    facets += ["synthetic data"] if record.synthetic else []
    subtitle = " | ".join(facets)
    figure = position_figure(numbers, config.title or f"What positions learned: {record.name}", subtitle)
    files = [run_dir / "positions.svg", run_dir / "positions.json"]
    replace_file(files[0], rendered(figure))
    replace_file(files[1], "{\n" + ",\n".join(lines) + "\n}\n")
    if config.format == "json":
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    print(f"{run_dir.name}: {subtitle}")
    print("\n".join(f"written: {path}" for path in files), file=sys.stderr)
