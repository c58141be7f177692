"""Python's standard library with hundreds of test documents: `python library_corpus.py DIR` for sweep lm_converged, and
`python library_corpus.py DIR functions`, where each function is a document, for sweep key_offset.

Three in ten files are test, one in twenty validation, by a hash of their names; data=python_library holds out one in
twenty for each.
"""

import ast
import hashlib
import json
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rpr.data.files import NOT_OF_THE_LIBRARY

TEST, VALIDATION = 30, 35  # percent, from 0 and from TEST


def functions(text: str) -> Iterator[str]:
    """A module's functions and methods, without decorators and indentation; nested ones in the outer one alone."""
    lines, end = text.split("\n"), 0
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in sorted(found, key=lambda node: node.lineno):
        if node.lineno > end:
            end = node.end_lineno or node.lineno
            yield textwrap.dedent("\n".join(lines[node.lineno - 1 : end]) + "\n")


def write(folder: Path, *, by_function: bool) -> dict[str, int]:
    """train.jsonl, validation.jsonl and test.jsonl; the number of documents of each."""
    root, splits = Path(sysconfig.get_paths()["stdlib"]), dict[str, list[str]]()
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if not NOT_OF_THE_LIBRARY & set(name.parts):
            place = int(hashlib.sha256(name.as_posix().encode()).hexdigest(), 16) % 100
            split = "test" if place < TEST else "validation" if place < VALIDATION else "train"
            text = file.read_bytes().decode(errors="ignore")
            for document in functions(text) if by_function else [text]:
                splits.setdefault(split, []).append(json.dumps({"text": document}) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    return {split: len(rows) for split, rows in splits.items()}


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), by_function=sys.argv[2:] == ["functions"]))
