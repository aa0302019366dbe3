"""Exercises of sitting 02B: recursive doubling, the bill from alpha and beta, a silent swap."""

from picolib.course.exercises import bills, lesson02b_doubling, lesson02b_swap

LESSON = "02B_cost_and_choice"
EXERCISES = (lesson02b_doubling.EXERCISE, bills.EXERCISE, lesson02b_swap.EXERCISE)
