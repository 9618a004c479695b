"""Models on this machine: names, packages they travel in, verified files."""

from caudal.store.package import Package, PackagedMessage
from caudal.store.progress import ProgressCallback, PullProgress, PullStage
from caudal.store.store import Store
from caudal.store.stored import ModelOrigin, StoredModel

__all__ = [
    "ModelOrigin",
    "Package",
    "PackagedMessage",
    "ProgressCallback",
    "PullProgress",
    "PullStage",
    "Store",
    "StoredModel",
]
