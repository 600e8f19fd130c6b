"""Measurements side by side in one run: one file a bench, one line here."""

BENCHES = {}
