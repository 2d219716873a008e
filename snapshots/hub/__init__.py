"""Models of a Hugging Face hub: found in this machine's cache, else downloaded into it.

The cache is the one that ``huggingface_hub``, transformers and vLLM use, in their layout, so that nothing is downloaded
twice. Nothing of those libraries is imported: theirs begin a broken download anew, ours goes on where it was.
"""

from snapshots.hub.cache import HubCache
from snapshots.hub.pull import PullOptions, pull
from snapshots.hub.settings import HubSettings

__all__ = ["HubCache", "HubSettings", "PullOptions", "pull"]
