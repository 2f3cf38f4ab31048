"""What Prometheus, alert rules and the maintainers' page watch."""
