"""Run folders: what a training run leaves on disk, and how it is read back."""
