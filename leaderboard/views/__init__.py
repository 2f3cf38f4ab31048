"""The public pages: find, act, render. Each has a small JSON of what moves, which its script asks for."""
