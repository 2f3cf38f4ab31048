"""What a run costs: budgets, FLOPs, peak FLOP/s, the speed probe."""
