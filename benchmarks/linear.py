"""How fast the linear kernels are on this machine, on one thread.

Prints GOP/s (one multiply-add counts as two), and for a single row, where memory is the limit, also
the GB/s at which packed weights were read. Every figure is the best of several runs.

    python benchmarks/linear.py [--types Q4_0,Q8_0] [--shapes 576x576] [--rows 1,32] [--isa avx2]
"""

import argparse
import time

import numpy as np

from caudal._native import kernels

TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "BF16": (30, 1, 2),
    "Q8_0": (8, 32, 34),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "IQ4_XS": (23, 256, 136),
    "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36),
    "IQ1_S": (19, 256, 50),
    "IQ2_S": (22, 256, 82),
    "IQ3_XXS": (18, 256, 98),
    "TQ2_0": (35, 256, 66),
}  # name: number in GGUF, elements and bytes of a block
SHAPES = ("576x576", "1536x576", "576x1536", "49152x576", "4096x4096")
ROWS = (1, 2, 4, 8, 16, 32, 128, 512)


def best_seconds(matrix: kernels.Matrix, isa: str, rows: int, cols: int, outputs: int) -> float:
    """The least processor time of a multiplication, without the conversion of activations."""
    x = np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float32)
    activations = kernels.Activations(isa, matrix.preferred, x)
    y = np.empty((rows, outputs), np.float32)
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 3 or (spent < 0.25 and runs < 200):
        start = time.thread_time()
        kernels.multiply(matrix, activations, y)
        seconds = time.thread_time() - start
        best, spent, runs = min(best, seconds), spent + seconds, runs + 1
    return best


def main() -> None:
    """Measures and prints one table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--isa", default=kernels.instruction_sets()[0])
    options = parser.parse_args()
    row_counts = [int(rows) for rows in options.rows.split(",")]
    for shape in options.shapes.split(","):
        outputs, cols = map(int, shape.split("x"))
        print(f"\n{shape}, {options.isa}: GOP/s" + (", GB/s for one row" * (1 in row_counts)))
        print("type    " + "".join(f"{f'M={rows}':>9}" for rows in row_counts))
        for name in options.types.split(","):
            number, elements, size = TYPES[name]
            if cols % elements:
                continue
            source = np.full(outputs * cols // elements * size, 0x2A, np.uint8)
            matrix = kernels.Matrix(options.isa, number, source, outputs, cols)
            line, bandwidth = f"{name:8}", ""
            for rows in row_counts:
                seconds = best_seconds(matrix, options.isa, rows, cols, outputs)
                line += f"{2e-9 * rows * cols * outputs / seconds:9.0f}"
                if rows == 1:
                    bandwidth = f"{matrix.bytes / seconds / 1e9:9.1f} GB/s"
            print(line + bandwidth, flush=True)


if __name__ == "__main__":
    main()
