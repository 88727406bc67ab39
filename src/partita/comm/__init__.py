"""Workers that talk to each other: who they are, what they exchange, how many bytes that takes, and how they end.

The only package that imports ``torch.distributed``.
"""
