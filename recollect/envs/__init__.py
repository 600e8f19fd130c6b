"""Environments behind one contract; see ``vector.py`` first, ``registry.py`` for names."""
