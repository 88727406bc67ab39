"""Helpers for tests of Partita and of code that uses it."""
