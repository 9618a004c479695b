"""Other paths under which clients look for the routes.

A client whose base URL lacks `/v1` asks for `/chat/completions`; clients of Jina, Cohere and
llama.cpp have names of their own for reranking. Each path is one route, whatever it is called.
"""

from __future__ import annotations

_SAME = {
    "/v2/rerank": "/v1/rerank",
    "/reranking": "/v1/rerank",
    "/v1/reranking": "/v1/rerank",
    "/v1/health": "/health",
    "/ping": "/health",
    "/api/hello": "/",  # where Claude Code looks for the server, without a key
    "/get_server_info": "/server_info",
    "/get_model_info": "/model_info",
    "/flush_cache": "/v1/prefix-cache/reset",  # SGLang's
    "/reset_prefix_cache": "/v1/prefix-cache/reset",  # vLLM's
}

_UNVERSIONED = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/conversations",
    "/files",
    "/batches",
    "/embeddings",
    "/models",
    "/rerank",
    "/score",
)


def canonical_path(path: str) -> str:
    """The path of the route that is meant; what is no other name of any stays as it is."""
    if path.startswith("/v1/"):
        return _SAME.get(path, path)
    for known in _UNVERSIONED:
        if path.startswith(known) and path[len(known) :][:1] in ("", "/"):
            return f"/v1{path}"
    return _SAME.get(path, path)
