"""Simulates one card that trains and scores for months, with the site's own schedule, queue and leases."""
