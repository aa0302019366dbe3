"""Predict, then run: a guess that is written down before the measurement teaches more than the measurement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from picolib.course import state


@dataclass(frozen=True)
class Prediction:
    """What you said before the run."""

    question: str
    value: Any

    def __repr__(self) -> str:
        return f"Your prediction, {self.question}: {_text(self.value)}"

    def compare(self, measured: Any, within: float = 0.0) -> None:
        """Print your prediction beside what the run says. within: relative difference that counts as right."""
        said = _as_number(self.value)
        if said is not None and _is_number(measured):
            right = abs(said - measured) <= within * abs(measured)
            far = "" if right else _off(said, measured)
        else:
            right, far = self.value == measured or same_words(self.value, measured), ""
        verdict = "you were right" if right else f"a surprise{f' ({far})' if far else ''}"
        print(f"{self.question}: you said {_text(self.value)}, the run says {_text(measured)}: {verdict}.")


def predict(question: str, value: Any) -> Prediction:
    """Write down what you expect before you run it; `.compare(measured)` afterwards tells how close you were."""
    if value is None or value is ...:
        raise ValueError(f"predict({question!r}, ...) wants your guess as second argument, before the run")
    record = state.load()
    record.setdefault("predictions", []).append(
        {"question": question, "value": value if _is_number(value) else str(value)}
    )
    state.save(record)
    return Prediction(question, value)


ARTICLES = {"a", "an", "and", "the", "it", "is", "has", "have", "be", "been", "was"}
ENDINGS = ("s", "es", "d", "ed", "n", "en", "r", "er", "ing")


def same_words(said: Any, measured: Any) -> bool:
    """Whether two answers in words are one, in another form: stay and stayed, the same and same, ZeRO-2 and zero 2."""
    if not isinstance(said, str) or not isinstance(measured, str):
        return False
    one, other = _words(said), _words(measured)
    if one and "".join(one) == "".join(other) and not any(word[0] in "-0123456789" for word in one + other):
        return True  # all-reduce, all reduce
    return bool(one) and len(one) == len(other) and all(map(_same_word, one, other))


def _words(text: str) -> list[str]:
    """The words, whatever stands between them; a number belongs to the name in front of it, a minus to its number."""
    joined = re.sub(r"(?<=[a-z])[-\s]+(?=\d)|(?<=[a-z])-(?=[a-z])", "", text.lower())
    return [word for word in re.findall(r"[\w-]+", joined) if word not in ARTICLES]


def _same_word(one: str, other: str) -> bool:
    """The same but for an ending, or, as in shrink and shrunk, but for its vowels."""
    if one == other or not (one.isalpha() and other.isalpha()):
        return one == other
    if _stems(one) & _stems(other):
        return True
    bones, others = (re.sub(r"(?<=.)[aeiou]", "", word).removesuffix("n") for word in (one, other))
    return one[0] == other[0] and bones == others and len(bones) >= 3


def _stems(word: str) -> set[str]:
    return {word} | {word.removesuffix(ending) for ending in ENDINGS if len(word) >= len(ending) + 3}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_number(value: Any) -> float | None:
    """A number, also one that was given as text ("12", "1,024"); None for anything else."""
    if _is_number(value):
        return value
    try:
        return float(value.replace(",", "").replace("_", ""))
    except (AttributeError, ValueError):
        return None


def _text(value: Any) -> str:
    return f"{value:,}" if _is_number(value) else str(value)


def _off(value: float, measured: float) -> str:
    """ "3 times too small", "20% too large"; nothing where one of them is 0 or their signs differ."""
    if not value * measured > 0:
        return ""
    factor = value / measured
    word, larger = ("large", factor) if factor > 1 else ("small", 1 / factor)
    if larger >= 1.95:
        return f"{larger:.3g} times too {word}"
    return f"{100 * abs(factor - 1):.2g}% too {word}"
