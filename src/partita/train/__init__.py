"""Training: the visible loop and what it needs around it."""
