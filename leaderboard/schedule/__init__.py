"""Scheduled runs: nightly, monthly and ladder runs, hours of tracks, the calendar."""
