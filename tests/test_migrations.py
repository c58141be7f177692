"""What earlier versions wrote. Records of theirs: tests/golden/old_records."""

from __future__ import annotations

from rpr.migrations import EARLIER_DEFAULTS, READ_AS, Machine, machine_of, with_earlier_defaults


def test_threads_and_processor_of_a_device() -> None:
    assert machine_of("1 thread of an abacus") == Machine("", 1, "an abacus")
    assert machine_of("2 processes, each 3 threads of 4 threads of wool") == Machine(
        "2 processes, each ", 3, "4 threads of wool"
    )
    assert machine_of("2 x H100") is None


def test_later_settings_get_their_earlier_values() -> None:
    settings = {"optim": {"non_finite": "skip"}, "hardware": {}, "seed": 1}
    of_optim = {
        key.removeprefix("optim."): value for key, value in EARLIER_DEFAULTS.items() if key.startswith("optim.")
    }
    assert with_earlier_defaults(settings) == {
        "optim": {**of_optim, "non_finite": "skip"}, "hardware": {"attention": "auto"}, "seed": 1,
        "stop_after_minutes": None, "again": False, "origin": None,
    }  # fmt: skip
    assert settings["hardware"] == {} and not EARLIER_DEFAULTS.keys() & READ_AS.keys()
