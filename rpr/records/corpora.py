"""Which files runs were trained on: the settings of a corpus only name them, and files change."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rpr.migrations import with_earlier_defaults
from rpr.records.record import Record


def corpus_differences(records: Sequence[Record]) -> list[str | None]:
    """For each run the hash of its corpus, if others of these runs read another one with the same settings; else None.
    A run that ended before it read its corpus is taken to have the first one's.
    """
    settings, keys = list[str](), dict[str, list[str]]()
    for run in records:
        data = with_earlier_defaults({"data": run.config["data"]})["data"]
        settings.append(json.dumps(data | {"cache_dir": None}, sort_keys=True))
        if run.data is not None:
            keys.setdefault(settings[-1], []).append(run.data.key)
    alike = [keys.get(text, [""]) for text in settings]
    return [
        (own[0] if run.data is None else run.data.key)[:12] if len({*own}) > 1 else None
        for run, own in zip(records, alike, strict=True)
    ]
