"""Inference with all neighbors of every node, layer by layer, and what is made of it: metrics and predictions."""
