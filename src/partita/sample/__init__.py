"""Mini-batches as pure functions of (seed, epoch, step, layer, original index): topology, blocks, seed order."""
