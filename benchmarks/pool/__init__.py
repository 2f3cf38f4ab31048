"""How fast is the pool's front desk? `python -m benchmarks.pool` says what it measures."""
