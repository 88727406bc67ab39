"""What a user sees: progress while something runs, and tables made from records."""
