"""The mysteries that open the sittings: each is a job of an earlier one, and a question about its trace."""

from picolib.course.mysteries import lesson_01, lesson_02, lesson_03, lesson_04, lesson_05
from picolib.course.mysteries.pretended import LAYERS, WEIGHTS, Layer

LESSONS = (lesson_01, lesson_02, lesson_03, lesson_04, lesson_05)
MYSTERIES = tuple(one for lesson in LESSONS for one in lesson.MYSTERIES)

__all__ = ["LAYERS", "MYSTERIES", "WEIGHTS", "Layer"]
