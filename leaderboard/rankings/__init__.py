"""From scored runs to places on the board: which runs count, multipliers, trust, confirmations."""
