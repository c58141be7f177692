"""Brings the committed records to the form that rpr reads: `python sweeps/results/convert_records.py [FOLDER ...]`.

Of each folder (by default every one with records below sweeps/) the records, whether files of their own with their
metrics beside them or lines of records.jsonl, become records.jsonl and metrics.parquet, without the settings in
DROPPED. Figures and run ids stay. The last change of the schema that needs it deletes it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rpr.io.atomic import replace_file
from rpr.records.files import KEPT_METRICS, METRICS_TABLE, _write_table
from rpr.records.record import METRICS_NAME, RECORD_NAME, RECORDS_NAME

SWEEPS = Path(__file__).resolve().parents[1]
# Dotted names in a record, as config.optim.ema_decay; position.NAME is that of every scheme of a run.
DROPPED: tuple[str, ...] = ()


def converted(document: dict[str, Any]) -> dict[str, Any]:
    """A record of today's form."""
    for name in DROPPED:
        *parents, last = name.split(".")
        tree: Any = document
        for parent in parents:
            tree = tree.get(parent) if isinstance(tree, dict) else None
        if isinstance(tree, dict):
            tree.pop(last, None)
    return document


def convert(folder: Path) -> None:
    """One folder."""
    file = folder / RECORDS_NAME
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    documents = {f"{one['name']}-{one['run_id']}": one for one in map(json.loads, lines)}
    metrics: list[dict[str, Any]] = []
    used = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not {"schema", "run_id", "status"} <= document.keys():
            continue
        name = f"{document['name']}-{document['run_id']}"
        documents[name] = document
        of_run = path.with_name(METRICS_NAME if path.name == RECORD_NAME else f"{path.stem}.{METRICS_NAME}")
        rows = of_run.read_text(encoding="utf-8").splitlines() if of_run.is_file() else []
        for row in map(json.loads, rows):
            kept = {key: row.get(key) for key in ("step", *KEPT_METRICS)}
            if any(kept[key] is not None for key in KEPT_METRICS):
                metrics.append({"run": name, **kept})
        used += [path, of_run]
    today = [converted(document) for _, document in sorted(documents.items())]
    ordered = [json.dumps(document, ensure_ascii=False, separators=(",", ":")) for document in today]
    replace_file(file, "".join(line + "\n" for line in ordered))
    if metrics:
        _write_table(folder / METRICS_TABLE, sorted(metrics, key=lambda row: row["run"]))
    for path in used:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    everywhere = sorted({path.parent for path in (*SWEEPS.rglob("*-s[0-9]*.json"), *SWEEPS.rglob(RECORDS_NAME))})
    for each in map(Path, sys.argv[1:]) if sys.argv[1:] else everywhere:
        convert(each)
