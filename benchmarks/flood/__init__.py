"""Simulates a flood of pull requests on the real site: its own functions, PostgreSQL and Redis, on a virtual clock."""
