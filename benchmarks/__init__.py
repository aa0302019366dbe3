"""Side-by-side measurements against torch's own implementations: `python -m benchmarks`, or one of its modules."""
