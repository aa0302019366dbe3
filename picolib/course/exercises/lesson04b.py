"""Exercises of sitting 04B: fully sharded layers, forward, backward, fetched in time, and what they cannot hold."""

from picolib.course.exercises import lesson04b_backward, lesson04b_claim, lesson04b_gather, lesson04b_prefetch

EXERCISES = (
    lesson04b_gather.EXERCISE,
    lesson04b_backward.EXERCISE,
    lesson04b_prefetch.EXERCISE,
    lesson04b_claim.EXERCISE,
)
