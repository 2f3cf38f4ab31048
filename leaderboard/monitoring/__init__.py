"""Metrics, alert rules and the maintainers' monitoring page."""
