"""Simulates the pool: the site's own matching and leases with synthetic nodes and jobs on a virtual clock."""
