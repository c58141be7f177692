"""Where every figure of the page comes from: each run's command, and its settings, those that all share said once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rpr.records.record import Record, flat
from rpr.report.rows import Table

MOST_IN_ONE_LIST = 24  # runs; of more, those of a variant are folded together


def runs_part(table: Table) -> str:
    """All runs of a table: what they share, then each with its command and what is its own."""
    runs = [run for row in table.rows for run in row.records]
    facts, settings = [_facts(run) for run in runs], [dict(flat(run.config)) for run in runs]
    same_facts, same_settings = _shared(facts), _shared(settings)
    parts = []
    several = len(runs) > 1
    if same_facts:
        parts.append(f"<h4>{f'The same for all {len(runs):,} runs' if several else 'Made with'}</h4>")
        parts.append(f"<pre>{escape(_lines(same_facts))}</pre>")
    if same_settings:
        whose = f"settings that all {len(runs):,} runs share" if several else "settings"
        parts.append(f"<details><summary>The {len(same_settings)} {whose}</summary>")
        parts.append(f'<pre class="settings">{escape(_settings(same_settings))}</pre></details>')
    entries = [
        _run(run, _without(facts[number], same_facts), _without(settings[number], same_settings))
        for number, run in enumerate(runs)
    ]
    parts.append("<h4>Each run, with the command that repeats it</h4>")
    if len(runs) <= MOST_IN_ONE_LIST:
        return "".join([*parts, *entries])
    remaining = iter(entries)
    for row in table.rows:
        mine = "".join(next(remaining) for _ in row.records)
        summary = f"{escape(row.label)}: {_count(row.records)}"
        parts.append(f"<details><summary>{summary}</summary>{mine}</details>")
    return "".join(parts)


def _count(runs: Sequence[Record]) -> str:
    unfinished = sum(run.status != "finished" for run in runs)
    words = f"{len(runs):,} run{'s' if len(runs) > 1 else ''}"
    return f'{words}, <span class="status failed">{unfinished:,} without a result</span>' if unfinished else words


def _run(run: Record, facts: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    texts = [run.command, "", _lines(facts)]
    if settings:
        texts.append(f"settings: {_settings(settings, ' ')}")
    return (
        f'<details><summary>{escape(run.name)} <span class="status {run.status}">{run.status}</span></summary>'
        f"<pre>{escape(chr(10).join(texts))}</pre></details>"
    )


def _facts(run: Record) -> dict[str, str]:
    """What is known of a run beside its configuration and scores."""
    dirty = {True: ", with uncommitted changes", False: "", None: ", state of the checkout unknown"}[run.git.dirty]
    steps = run.steps if run.steps is not None else "an unknown number of"
    facts = {
        "run": f"{run.run_id}, seed {run.seed}",
        "status": run.outcome or f"finished after {steps} steps",
        "commit": f"{run.git.commit}{dirty}" if run.git.commit else "no checkout",
        "device": f"{run.device} (hardware={run.hardware})",
        "started": run.started,
        "finished": run.finished or "not",
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    if run.data is not None:
        pairs = f"{run.data.train_pairs:,} pairs, {run.data.dropped_pairs:,} dropped"
        facts["data"] = "; ".join([f"{run.data.name}, key {run.data.key}, {pairs}", *run.data.notes])
    if run.wandb is not None:
        facts["W&B"] = f"{run.wandb.id} ({run.wandb.mode}{f', {run.wandb.url}' if run.wandb.url else ''})"
    return facts


def _shared(all_values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What every one of them has, with the same value; 1 and 1.0 are two values."""
    first, *others = all_values
    shared = dict(first)
    for values in others:
        shared = {
            key: value
            for key, value in shared.items()
            if key in values and type(values[key]) is type(value) and values[key] == value
        }
    return shared


def _without(values: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in shared}


def _lines(facts: Mapping[str, Any]) -> str:
    return "\n".join(f"{name + ':':<10}{value}" for name, value in facts.items())


def _settings(settings: Mapping[str, Any], between: str = "\n") -> str:
    return between.join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in sorted(settings.items()))
