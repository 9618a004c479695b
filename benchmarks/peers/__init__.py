"""Who is measured: one file for each, behind the interface in `base.py`."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.base import Peer
from benchmarks.peers.caudal import CaudalPeer
from benchmarks.peers.llama_cpp import BuiltPeer, LlamaCppPeer
from benchmarks.peers.openvino import OpenVinoPeer
from benchmarks.peers.vllm import VllmPeer


def all_peers(built: Mapping[str, Path] | None = None) -> list[Peer]:
    """Caudal first, then the others, and those that were built elsewhere: directories by name."""
    elsewhere = [BuiltPeer(name, directory) for name, directory in (built or {}).items()]
    return [CaudalPeer(), LlamaCppPeer(), OpenVinoPeer(), VllmPeer(), *elsewhere]
