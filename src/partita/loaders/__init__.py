"""Mini-batches for a training loop and a model of one's own."""
