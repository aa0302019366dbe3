"""Source code as a notebook shows it: coloured, with the file it comes from, and plain where nothing renders."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

# JupyterLab's own editor colours, so that code follows its theme; elsewhere the second value, on a light card.
COLORS = {
    "Keyword": "var(--jp-mirror-editor-keyword-color, #006428)",
    "Name.Builtin": "var(--jp-mirror-editor-builtin-color, #006428)",
    "Name.Function": "var(--jp-mirror-editor-def-color, #0000c8)",
    "Name.Class": "var(--jp-mirror-editor-def-color, #0000c8)",
    "Name.Decorator": "var(--jp-mirror-editor-meta-color, #7a3aa0)",
    "Literal.String": "var(--jp-mirror-editor-string-color, #a02020)",
    "Literal.Number": "var(--jp-mirror-editor-number-color, #006040)",
    "Operator.Word": "var(--jp-mirror-editor-keyword-color, #006428)",
    "Comment": "var(--jp-mirror-editor-comment-color, #36707a)",
}
CARD = (
    "background:var(--jp-cell-editor-background, #f7f7f3);color:var(--jp-content-font-color0, #1c2024);"
    "border:1px solid var(--jp-border-color2, #dcdcd4);border-radius:6px;padding:8px 12px;margin:0;"
    "font-size:13px;line-height:1.35;overflow-x:auto;"
    "font-family:var(--jp-code-font-family, Menlo, Consolas, 'DejaVu Sans Mono', monospace)"
)


@dataclass(frozen=True)
class Source:
    """A piece of source code: its name, its place ("picolib/comm/all_reduce.py, lines 39-47"), its text."""

    name: str
    place: str
    code: str

    def __repr__(self) -> str:
        return f"# {self.place}\n{self.code}"

    def html(self) -> str:
        """The code on a card, in the colours of the editor."""
        where = f'<div style="font-size:12px;opacity:0.75;margin:2px 0 4px">{escape(self.place)}</div>'
        return f'<div>{where}<pre style="{CARD}">{highlight(self.code)}</pre></div>'

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": repr(self), "text/html": self.html()}


def source_of(thing: Any) -> Source:
    """The source of a function, class, method or module. Raises TypeError for what has none (a number, a builtin)."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    try:
        lines, first = inspect.getsourcelines(thing)
        path = inspect.getsourcefile(thing) or ""
    except (TypeError, OSError):
        raise TypeError(f"{thing!r} has no Python source to show: pass a function, class or module") from None
    first = max(first, 1)  # a module's first line is given as 0
    code = textwrap.dedent("".join(lines)).rstrip("\n")
    name = getattr(thing, "__qualname__", getattr(thing, "__name__", ""))
    return Source(name, f"{_short(path)}, lines {first}-{first + len(lines) - 1}", code)


def _short(path: str) -> str:
    """A path from the package's name on, the same on every machine; a notebook's cell is called so."""
    parts = Path(path).parts
    if "picolib" in parts:
        return "/".join(parts[len(parts) - 1 - parts[::-1].index("picolib") :])
    return "this notebook" if "ipykernel" in path or path.startswith("<") else Path(path).name


def highlight(code: str) -> str:
    """HTML of Python code, each token in its colour."""
    from pygments.lexers import PythonLexer

    return "".join(_span(str(kind), text) for kind, text in PythonLexer(stripnl=False).get_tokens(code)).rstrip("\n")


def _span(kind: str, text: str) -> str:
    color = next((COLORS[name] for name in COLORS if kind.startswith(f"Token.{name}")), None)
    return f'<span style="color:{color}">{escape(text)}</span>' if color and text.strip() else escape(text)
