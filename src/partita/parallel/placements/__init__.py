"""Placements: each decides, for one layer, who computes the rows that a worker asks for."""
