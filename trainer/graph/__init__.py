"""Architectures as graphs of tensor operators: traced from Python once, then counted, trained and scored as data."""
