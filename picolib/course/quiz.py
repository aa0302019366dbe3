"""Questions that check themselves: `quiz("02A")`, `quiz("02A.1", "02A.4")`.

The questions are Markdown, an output like any other: they are read where nothing runs. Below each stands a row of
buttons; what an answer is worth, and why, appears only when it is chosen, and is in no stored output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Answer:
    """One of the answers offered; `why` is said when it is chosen."""

    text: str
    why: str
    right: bool = False


@dataclass(frozen=True)
class Question:
    """A question with two to six answers, one of which is right; `id` is its lesson and number ("02A.1")."""

    id: str
    text: str
    answers: tuple[Answer, ...]

    def __post_init__(self) -> None:
        if sum(answer.right for answer in self.answers) != 1 or not 2 <= len(self.answers) <= len(LETTERS):
            raise ValueError(f"question {self.id}: give two to {len(LETTERS)} answers, exactly one of them right")

    def markdown(self) -> str:
        """The question and its answers, lettered, without saying which is right."""
        lines = [f"- **{letter}** {answer.text}" for letter, answer in zip(LETTERS, self.answers, strict=False)]
        return f"**Question {self.id}** {self.text}\n\n" + "\n".join(lines)

    def verdict(self, letter: str) -> str:
        """What is said to an answer: "Right: …" or "Not quite: …"."""
        answer = self.answers[LETTERS.index(letter)]
        return f"{'Right' if answer.right else 'Not quite'}: {answer.why}"


class Quiz:
    """Questions one below the other; shows itself in a notebook."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.questions = tuple(questions)

    def __repr__(self) -> str:
        return "[quiz: " + ", ".join(question.id for question in self.questions) + "]"

    def _ipython_display_(self) -> None:
        from IPython.display import Markdown, display

        for question in self.questions:
            display(Markdown(question.markdown()))
            display(buttons(question))


def buttons(question: Question) -> Any:
    """A button for each answer, and the line that says what was right or wrong with it."""
    import ipywidgets

    from picolib.course.style import ACCENT, GOOD
    from picolib.course.widgets.base import Panel

    said = ipywidgets.HTML()
    letters = LETTERS[: len(question.answers)]
    row = [ipywidgets.Button(description=letter, layout=ipywidgets.Layout(width="52px")) for letter in letters]

    def answer(pressed: Any) -> None:
        verdict = question.verdict(pressed.description)
        color = GOOD if verdict.startswith("Right") else ACCENT
        said.value = (
            f'<div style="background:#fbfbf8;color:#1c2024;border-left:5px solid {color};padding:6px 12px;'
            f'line-height:1.4"><b>{pressed.description}</b> {_html(verdict)}</div>'
        )

    for button in row:
        button.on_click(answer)
    return Panel([ipywidgets.HBox(row), said], f"question {question.id}, answers {letters[0]} to {letters[-1]}")


def _html(text: str) -> str:
    from html import escape

    pieces = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))


def quiz(*which: str) -> Quiz:
    """The questions of a lesson ("02A") or single ones ("02A.3", "02A.5"). Raises ValueError for one there is not."""
    return Quiz([question for one in which for question in _questions(one)])


def _questions(which: str) -> list[Question]:
    from picolib.course.questions import BANK

    lesson = which.split(".")[0]
    found = [q for q in BANK.get(lesson, ()) if which in (lesson, q.id)]
    if not found:
        raise ValueError(f"which={which!r}: there are questions for {', '.join(sorted(BANK))}, such as '{lesson}.1'")
    return found
