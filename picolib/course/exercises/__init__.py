"""What each exercise asks, and how it is judged: one module a sitting."""
