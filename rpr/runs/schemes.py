"""Whether the code of a run's position schemes is still the one that trained it."""

from __future__ import annotations

from rpr.errors import RecordError
from rpr.model.positions import Positions, changed_code
from rpr.records.record import Record


def check_same_code(positions: Positions, record: Record) -> None:
    """Check that weights meet the equations they were trained with. Older records do not say.

    Raises:
        RecordError: the code of a scheme has changed since the run was started.
    """
    if changes := changed_code((positions.encoder, positions.decoder), record.schemes):
        commit = record.git.commit
        of_commit = f" (commit {commit[:10]}{', with changes' if record.git.dirty else ''})" if commit else ""
        raise RecordError(
            f"position.scheme: {changes[0]} since {record.name} was trained; restore it as it was with rpr "
            f"{record.versions.get('rpr', '?')}{of_commit}, or train the run again: rpr-cli train ... again=true"
        )
