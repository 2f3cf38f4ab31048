"""What a run costs: budgets, FLOPs, peak FLOP/s, plausibility, the speed probe."""
