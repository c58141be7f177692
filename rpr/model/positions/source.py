"""What names the code of a scheme in records: its `VERSION`, or a digest of its source.

The schemes of this project have a `VERSION`, frozen with their values in tests/golden/schemes.json: refactoring changes
no record. Any other scheme is named by the sha256 of the syntax tree of its file, in which comments, docstrings and
formatting do not count, and by the version of a scheme that it extends.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpr.model.positions.scheme import Scheme


@cache  # of what was imported: a file may change under a long training
def code_of(scheme: type[Scheme]) -> str:
    """The version of a scheme's code: `1`, or 16 hexadecimal digits; joined by + with that of a scheme it extends."""
    parts: list[str] = []
    for kind in scheme.__mro__:
        if "VERSION" in vars(kind):
            return "+".join([*parts, str(vars(kind)["VERSION"])])
        if kind.__module__ == f"{__package__}.scheme":
            break
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is not None and (digested := digest(Path(file))) not in parts:
            parts.append(digested)
    return "+".join(parts)


def digest(file: Path) -> str:
    return hashlib.sha256(repr(_plain(ast.parse(file.read_text(encoding="utf-8")))).encode()).hexdigest()[:16]


def _plain(node: Any) -> Any:
    """A syntax tree without docstrings and without empty fields, which differ between versions of Python."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False)
    fields = dict(ast.iter_fields(node)) | ({"body": node.body[1:]} if documented else {})  # type: ignore[attr-defined]
    return type(node).__name__, [(name, _plain(value)) for name, value in fields.items() if value not in (None, [])]
