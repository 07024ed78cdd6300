"""Measurements: `python -m scripts.bench --help`."""
