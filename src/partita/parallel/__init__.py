"""Who computes which rows: placements, one per layer, and the engine that chains them."""
