"""What a run's workers communicate for; to be known before they are started, and so without torch."""

PURPOSES = ("train", "sample", "sample", "load")
"""Groups of workers that a run needs: sampling and loading run ahead in threads of their own, sampling in two."""
