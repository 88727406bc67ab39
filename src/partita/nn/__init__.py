"""Graph neural network layers in partial-aggregation form, the adapter for PyG convolutions, and the model.

Nothing here knows on how many workers, or under which strategy, a model is trained.
"""
