"""Imports point one way: packages lie in layers, and none imports from its own layer or above."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import caudal

SOURCE = Path(caudal.__file__).parent

OFFERED = "caudal/__init__.py"
"""What the package itself offers: the library, found when it is asked for."""

LAYERS: Sequence[frozenset[str]] = [
    frozenset(layer.split())
    for layer in (
        "__version__ _native errors lifeline logs machine plots subschemas",
        "structured_outputs",
        "sampling_params",
        "formats",
        "models store",
        "backends conversion",
        "engine",
        "grammars",
        "chat loading",
        "packaging planning reading service",
        "workers library",
        "batches fleet routes tenants",
        "server",
        OFFERED,
        "bench configuration launch",
        "cli",
    )
]
"""Packages and single modules, from the lowest layer to the highest."""

HEIGHTS = {package: height for height, layer in enumerate(LAYERS) for package in layer}

ONLY = {
    "engine": (
        "caudal.errors",
        "caudal.sampling_params",
        "caudal.backends.executor",  # batches and their results
        "caudal.formats.lora.adapter",  # what executors load, and nothing of how it is read
        "caudal.models.pooling",  # how embeddings are made, by name
    ),
    "formats": (
        "caudal.errors",
        "caudal.lifeline",
        "caudal._native",  # what the bytes of blocks stand for
    ),
    "models": ("caudal.errors", "caudal.formats"),
    "store": ("caudal.errors", "caudal.formats"),
}
"""All that a package may import of what is below it, where that isn't everything."""


def imported_by(file: Path) -> Iterator[str]:
    """The modules of ours that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where they point"
            assert node.module is not None
            inside = node.module == "caudal"
            names = [f"caudal.{each.name}" for each in node.names] if inside else [node.module]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "caudal")


def package_of(module: str) -> str:
    """The package that a module is in, or its own name where it is in none."""
    name = module.partition(".")[2].partition(".")[0]
    return name if name in HEIGHTS else OFFERED


def package_at(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return OFFERED if first == "__init__" else first


def may_import(importer: str, module: str) -> bool:
    imported = package_of(module)
    if imported == importer:
        return True
    if HEIGHTS[imported] >= HEIGHTS[importer]:
        return False
    only = ONLY.get(importer)
    return only is None or any(f"{module}.".startswith(f"{each}.") for each in only)


def test_nothing_imports_from_above_it() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert {package_at(file) for file in files} | {"__version__", "_native"} == HEIGHTS.keys()
    pairs = [(file, module) for file in files for module in imported_by(file)]
    assert len(pairs) > 500
    wrong = [
        f"{file.relative_to(SOURCE)} imports {module}"
        for file, module in pairs
        if not may_import(package_at(file), module)
    ]
    assert wrong == []


def test_what_points_the_wrong_way_is_found() -> None:
    for importer, module in (
        ("backends", "caudal.engine.request"),
        ("engine", "caudal.formats.tokenizer"),
        ("engine", "caudal.models.program"),
        ("engine", "caudal.backends"),
        ("chat", "caudal.loading.load"),
        ("service", "caudal.server.errors"),
        ("library", "caudal.server.errors"),
        ("workers", "caudal.server.errors"),
        ("loading", "caudal.LLM"),
    ):
        assert not may_import(importer, module), f"{importer} may import {module}"
    assert may_import("service", "caudal.chat.conversation")
    assert may_import("loading", "caudal.__version__")
