"""Recipes that train beside each other: ours and a peer's, on the same tokens, with the same counts."""
