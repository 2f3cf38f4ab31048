"""The board: a visitor's query, the table, the frontier and the scales."""
