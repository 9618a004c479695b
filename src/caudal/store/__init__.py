"""Models on this machine: names, packages they travel in, verified files."""

from caudal.store.progress import ProgressCallback, PullProgress, PullStage
from caudal.store.store import Store, StoredModel

__all__ = ["ProgressCallback", "PullProgress", "PullStage", "Store", "StoredModel"]
