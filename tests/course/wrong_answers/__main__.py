"""Prints the page of the docs: python -m tests.course.wrong_answers > docs/answers.md"""

import sys

from . import to_markdown

sys.stdout.write(to_markdown() + "\n")
