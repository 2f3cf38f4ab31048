"""How fast are the pages of a site with a past? `python -m benchmarks.site` says what it measures."""
