"""Partitioners behind one protocol, what a partition costs, and stores in partition order."""
