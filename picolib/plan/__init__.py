"""Models of memory and cost: pure arithmetic, no ranks."""
