"""The words everything else is written in: errors, records, protocols, keys, progress.

Nothing here imports another part of the package.
"""
