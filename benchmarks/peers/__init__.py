"""Who is measured: one file for each, behind the interface in `base.py`."""

from benchmarks.peers.base import Peer
from benchmarks.peers.caudal import CaudalPeer
from benchmarks.peers.llama_cpp import LlamaCppPeer
from benchmarks.peers.openvino import OpenVinoPeer
from benchmarks.peers.vllm import VllmPeer


def all_peers() -> list[Peer]:
    """Caudal first, then the others."""
    return [CaudalPeer(), LlamaCppPeer(), OpenVinoPeer(), VllmPeer()]
