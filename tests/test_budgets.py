"""Each room has a budget of lines: a budget is raised only by lowering another. Rooms are folders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "rpr": 998,
    "rpr/checks": 430,
    "rpr/cli": 330,
    "rpr/commands": 1_520,
    "rpr/compose": 310,
    "rpr/config": 700,
    "rpr/data": 2_630,
    "rpr/decode": 550,
    "rpr/export": 820,
    "rpr/io": 250,
    "rpr/model": 6_240,
    "rpr/records": 1_181,
    "rpr/report": 2_501,
    "rpr/runs": 800,
    "rpr/scoring": 1_110,
    "rpr/sweep": 980,
    "rpr/tracking": 450,
    "rpr/training": 1_060,
    "tests": 1_959,
    "tests/checks": 350,
    "tests/cli": 340,
    "tests/config": 267,
    "tests/data": 1_245,
    "tests/decode": 286,
    "tests/export": 429,
    "tests/golden": 364,
    "tests/gpu": 395,
    "tests/io": 117,
    "tests/model": 2_657,
    "tests/property": 470,
    "tests/records": 243,
    "tests/report": 1_398,
    "tests/runs": 414,
    "tests/scoring": 498,
    "tests/sweep": 480,
    "tests/system": 2_664,
    "tests/tracking": 302,
    "tests/training": 640,
}


def lines(folder: Path) -> int:
    """Of the Python files in a folder, and below it but for rpr/ and tests/ themselves, whose folders are rooms."""
    files = folder.glob("*.py") if folder.parent == ROOT else folder.rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def test_every_room_is_within_its_budget():
    over = {room: lines(ROOT / room) - budget for room, budget in ROOMS.items() if lines(ROOT / room) > budget}
    assert not over, f"shorten them, or lower the budget of another room by as much: {over}"


def test_every_folder_is_a_room():
    files = [file for top in ("rpr", "tests") for file in (ROOT / top).rglob("*.py")]
    folders = {file.parent.relative_to(ROOT).as_posix() for file in files}
    assert {"/".join(folder.split("/")[:2]) for folder in folders} <= {*ROOMS}
