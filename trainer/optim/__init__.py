"""Optimizers, parameter groups, adapters."""
