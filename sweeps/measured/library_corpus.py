"""Python's standard library with hundreds of test documents, for sweep lm_converged: `python library_corpus.py DIR`.

Three in ten files are test, one in twenty validation, by a hash of their names; data=python_library holds out one in
twenty for each.
"""

import hashlib
import json
import sys
import sysconfig
from pathlib import Path

from rpr.data.files import NOT_OF_THE_LIBRARY

TEST, VALIDATION = 30, 35  # percent, from 0 and from TEST


def write(folder: Path) -> dict[str, int]:
    """train.jsonl, validation.jsonl and test.jsonl; the number of documents of each."""
    root, splits = Path(sysconfig.get_paths()["stdlib"]), dict[str, list[str]]()
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if not NOT_OF_THE_LIBRARY & set(name.parts):
            place = int(hashlib.sha256(name.as_posix().encode()).hexdigest(), 16) % 100
            split = "test" if place < TEST else "validation" if place < VALIDATION else "train"
            text = file.read_bytes().decode(errors="ignore")
            splits.setdefault(split, []).append(json.dumps({"text": text}) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    return {split: len(rows) for split, rows in splits.items()}


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
