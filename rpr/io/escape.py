"""Characters that a text of another person could hide in, or take hold of a terminal by, made visible."""

from __future__ import annotations

import re
from typing import Any

# Controls (ESC begins what colours, moves and renames; so does U+009B), separators of lines, what turns the order of
# reading round, and halves of a pair, which cannot be written at all. A joiner within an emoji or a word is none.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text on one line, with `\x1b` for ESC and `\n` for the end of a line."""
    return text if text.isprintable() else _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_tree(tree: Any) -> Any:
    """Plain values with every text among them, keys too, made visible."""
    if isinstance(tree, str):
        return visible(tree)
    if isinstance(tree, dict):
        return {visible(key): visible_tree(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(visible_tree, tree))
    return tree
