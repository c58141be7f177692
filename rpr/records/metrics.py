"""The metrics that a run logged while it trained, one line of metrics.jsonl for each logged step."""

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rpr.records.record import read_text, refusal

SHOWN_METRICS = {  # columns that a progress bar shows, with their labels
    "train/loss": "loss",
    "validation/bleu": "BLEU",
    "target_tokens_per_second": "target tokens/s",
    "validation/loss": "validation loss",
}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without a last line torn by a crash; empty if there is no file. Raises RecordError
    if a line before the last is damaged, or a line has no step.
    """
    if not path.exists():
        return []
    metrics, lines = [], read_text(path).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = from_json(line)
        except ValueError:
            if number == len(lines):
                break
            raise refusal(f"{path}:{number}: not JSON; delete this line to read the others") from None
        if not isinstance(entry, dict) or type(entry.get("step")) is not int:
            raise refusal(
                f'{path}:{number}: a line of metrics is an object with a whole "step"; delete it to read the others'
            )
        metrics.append(entry)
    return metrics
