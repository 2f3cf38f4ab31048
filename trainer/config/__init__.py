"""Configuration of a run: dataclasses, presets, parsing."""
