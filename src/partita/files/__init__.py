"""Rows of files: read in few large reads at once and past the system's cache of pages, and written likewise."""
