"""Functions that tests run inside a live site's own process and settings, with `LiveSite.call`. Results are JSON."""
