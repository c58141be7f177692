"""What names the code of a scheme in records: its `VERSION`, or a digest of its source.

The schemes of this project have a `VERSION`, frozen with their values in tests/golden/schemes.json: refactoring changes
no record. Any other scheme is named by the sha256 of the syntax tree of its module and of the modules beside it that it
imports; comments, docstrings and formatting do not count. What it imports from the rest of rpr is not included: a
record has rpr's version and commit.
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

_INTERFACE = "scheme"  # the module every scheme imports


@cache
def code_of(scheme: type[Scheme]) -> str:
    """The version of a scheme's code: `1`, or 16 hexadecimal digits; joined by + with that of a scheme it extends."""
    parts: list[str] = []
    for kind in scheme.__mro__:
        if "VERSION" in vars(kind):
            return "+".join([*parts, str(vars(kind)["VERSION"])])
        if kind.__module__ == f"{__package__}.{_INTERFACE}":
            break
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is not None and (digested := digest(Path(file))) not in parts:
            parts.append(digested)
    return "+".join(parts)


@cache  # of what was imported: a file may change under a long training
def digest(file: Path) -> str:
    """Of a module and the modules beside it that it imports, directly or not; 16 hexadecimal digits."""
    read: dict[str, Any] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path.stem not in read:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            read[path.stem] = _plain(tree)
            waiting += [path.with_name(f"{name}.py") for name in sorted(_imported_beside(tree, path.parent))]
    return hashlib.sha256(repr(sorted(read.items())).encode()).hexdigest()[:16]


def _imported_beside(tree: ast.AST, folder: Path) -> set[str]:
    """The names of the modules of the same folder that are imported, of those that define no scheme with a VERSION."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.rpartition(".")[2] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").rpartition(".")[2], *(alias.name for alias in node.names)}
    return {name for name in names - {"", _INTERFACE} if (folder / f"{name}.py").is_file() and not _versioned(name)}


def _versioned(name: str) -> bool:
    module = sys.modules.get(f"{__package__}.{name}")
    own = [] if module is None else [kind for kind in vars(module).values() if isinstance(kind, type)]
    return any("VERSION" in vars(kind) for kind in own if kind.__module__ == getattr(module, "__name__", None))


def _plain(node: Any) -> Any:
    """A syntax tree without docstrings and without empty fields, which differ between versions of Python."""
    if isinstance(node, ast.AST):
        fields = dict(ast.iter_fields(node))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False) is not None
            fields["body"] = node.body[1:] if docstring else node.body
        fields_set = [(name, _plain(value)) for name, value in fields.items() if value not in (None, [])]
        return type(node).__name__, fields_set
    return [_plain(item) for item in node] if isinstance(node, list) else repr(node)


def imports_torch(file: Path) -> bool:
    """Whether a module imports torch when it is imported itself, rather than in its functions."""
    text = file.read_text(encoding="utf-8")
    waiting: list[ast.stmt] = ast.parse(text).body if "torch" in text else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            if any(module.partition(".")[0] == "torch" for module in modules):
                return True
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return False
