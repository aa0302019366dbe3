"""Exercises of sitting 05A: f and g, column then row, whole heads, and a loss that never sees all logits."""

from picolib.course.exercises import lesson05a_conjugate, lesson05a_heads, lesson05a_loss, lesson05a_mlp

EXERCISES = (
    lesson05a_conjugate.EXERCISE,
    lesson05a_mlp.EXERCISE,
    lesson05a_heads.EXERCISE,
    lesson05a_loss.EXERCISE,
)
