"""The mysteries that open the sittings: each is a job of an earlier one, and a question about its trace."""

from picolib.course.mysteries import lesson_02, lesson_03, lesson_04, lesson_05
from picolib.course.mysteries.pretended import LAYERS, WEIGHTS, Layer

MYSTERIES = (*lesson_02.MYSTERIES, *lesson_03.MYSTERIES, *lesson_04.MYSTERIES, *lesson_05.MYSTERIES)

__all__ = ["LAYERS", "MYSTERIES", "WEIGHTS", "Layer"]
