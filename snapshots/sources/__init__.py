"""Where weights come from: a folder, an http(s) server, an S3-compatible store, a GGUF file in any of these.

In: a location. Out: a snapshot in the store (:func:`fetch`, :func:`prefetch`). Downloads resume by verified chunks,
run several at once within a bandwidth limit, and count as complete only when the manifest, or the checkpoint's own
headers, say so.
"""

from snapshots.sources.base import Listing, RemoteFile, Source, Transient
from snapshots.sources.download import DownloadOptions
from snapshots.sources.fetching import Fetched, FetchOptions, fetch, open_source, prefetch

__all__ = [
    "DownloadOptions",
    "FetchOptions",
    "Fetched",
    "Listing",
    "RemoteFile",
    "Source",
    "Transient",
    "fetch",
    "open_source",
    "prefetch",
]
