"""The questions of every lesson. The answers stand in these files: they are for you to look at afterwards."""

from picolib.course.questions import (
    lesson_00,
    lesson_01a,
    lesson_01b,
    lesson_02a,
    lesson_02b,
    lesson_03a,
    lesson_03b,
    lesson_04a,
    lesson_04b,
    lesson_05a,
    lesson_05b,
)

BANK = {
    "00": lesson_00.QUESTIONS,
    "01A": lesson_01a.QUESTIONS,
    "01B": lesson_01b.QUESTIONS,
    "02A": lesson_02a.QUESTIONS,
    "02B": lesson_02b.QUESTIONS,
    "03A": lesson_03a.QUESTIONS,
    "03B": lesson_03b.QUESTIONS,
    "04A": lesson_04a.QUESTIONS,
    "04B": lesson_04b.QUESTIONS,
    "05A": lesson_05a.QUESTIONS,
    "05B": lesson_05b.QUESTIONS,
}
