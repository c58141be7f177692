"""Whether the code of a run's position schemes is still the one that trained it."""

from __future__ import annotations

from rpr.errors import RecordError
from rpr.model.positions import Positions, codes
from rpr.records.record import Record


def check_same_code(positions: Positions, record: Record) -> None:
    """Check that weights meet the equations they were trained with. Older records do not say.

    Raises:
        RecordError: the code of a scheme has changed since the run was started.
    """
    recorded = record.schemes or {}
    for name, code in codes(positions).items():
        if recorded.get(name, code) != code:
            commit = record.git.commit
            of_commit = f" (commit {commit[:10]}{', with changes' if record.git.dirty else ''})" if commit else ""
            raise RecordError(
                f"position.scheme: the code of {name} has changed since {record.name} was trained (version "
                f"{recorded[name]}, now {code}); restore it as it was with rpr {record.versions.get('rpr', '?')}"
                f"{of_commit}, or train the run again: rpr-cli train ... again=true"
            )
