"""Measures the machine, foresees what every strategy would do on it, and says which one is the fastest, and why."""
