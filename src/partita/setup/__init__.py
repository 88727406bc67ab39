"""What a run computes with: the opened graph and features, the task, the optimizer, threads and precision."""
