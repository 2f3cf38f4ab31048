"""Costs of a run: budgets, FLOPs, peak FLOP/s, the speed probe."""
