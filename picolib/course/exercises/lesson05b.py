"""Exercises of sitting 05B: sequence parallelism, masks of dropout, and on which links tensor parallelism belongs."""

from picolib.course.exercises import lesson05b_block, lesson05b_dropout, lesson05b_where

EXERCISES = (lesson05b_block.EXERCISE, lesson05b_dropout.EXERCISE, lesson05b_where.EXERCISE)
