"""The board: what a visitor asks of it, its table, its frontier and its scales."""
