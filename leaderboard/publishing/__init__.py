"""Weights for everybody: releases, publications, their cards, and the way to the Hub."""
