"""The linear kernels against float64, and bit for bit against themselves.

Where activations are quantised, the reference quantises them too (in numpy, by the definition), so
that what is left is the rounding of the kernels' own sums.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal import _native
from caudal._native import kernels
from support.quantised_weights import (
    FLOAT_TYPES,
    HALVES,
    QUANTISED_TYPES,
    TYPES,
    block_size,
    numbers,
    random_weights,
)

Kind = kernels.ActivationKind
ISAS = kernels.instruction_sets()
LIMITS = {Kind.Int8: 127, Kind.Int16: 32767}
WIDE_TYPES = ("Q8_0", "IQ4_NL", "IQ4_XS")


def kind_of(name: str) -> Kind:
    """The fast kind of activations for a type."""
    if name in FLOAT_TYPES:
        return Kind.F32
    return Kind.Int16 if name in WIDE_TYPES else Kind.Int8


def kinds_of(name: str) -> set[Kind]:
    """All kinds of activations that go with a type."""
    return {Kind.F32, kind_of(name)} | ({Kind.Int8Twice} if kind_of(name) == Kind.Int8 else set())


def as_quantised(kind: Kind, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """What the kernels take x for: groups of 32 integers with one scale."""
    if kind == Kind.F32:
        return x.astype(np.float64)
    if kind == Kind.Int8Twice:
        first = as_quantised(Kind.Int8, x)
        return first + as_quantised(Kind.Int8, (x - first).astype(np.float32))
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    limit = np.float32(LIMITS[kind])
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.rint(groups * np.where(largest > 1e-35, limit / largest, 0))
    return (codes.astype(np.float64) * (largest / limit)).reshape(x.shape)


class Case:
    """A random matrix of a type, packed."""

    def __init__(self, isa: str, name: str, rows: int, cols: int, seed: int = 0) -> None:
        self.isa, self.rows, self.cols = isa, rows, cols
        weights = random_weights(name, rows, cols, seed)
        self.exact = numbers(name, weights).astype(np.float64)
        self.matrix = kernels.Matrix(isa, int(TYPES[name]), weights.reshape(-1), rows, cols)

    def multiply(
        self, kind: Kind, x: NDArray[np.float32], y: NDArray[np.float32] | None = None, **options
    ) -> NDArray[np.float32]:
        """X times the matrix, into a y of NaN unless one is given."""
        if y is None:
            y = np.full((len(x), self.rows), np.nan, np.float32)
        kernels.multiply(self.matrix, kernels.Activations(self.isa, kind, x), y, **options)
        return y

    def error(self, kind: Kind, x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
        """The largest error, relative to the sum of the products' magnitudes."""
        quantised = as_quantised(kind, x)
        magnitude = np.abs(quantised) @ np.abs(self.exact).T + 1e-30
        return float((np.abs(y - quantised @ self.exact.T) / magnitude).max())


def activations(rows: int, cols: int, seed: int = 1) -> NDArray[np.float32]:
    """Normal numbers with an outlier here and there, as models have them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols)).astype(np.float32)
    x[rng.random(x.shape) < 0.01] *= 20
    return x


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_preferred_kind(isa: str, name: str) -> None:
    assert Case(isa, name, 16, 256).matrix.preferred == kind_of(name)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_against_float64(isa: str, name: str) -> None:
    for rows, groups in ((16, 8), (37, 24), (5, 40)):
        case = Case(isa, name, rows, groups * 32, seed=rows)
        for count in (1, 2, 3, 4, 6, 7, 12, 13, 18):
            x = activations(count, case.cols, seed=count)
            for kind in kinds_of(name):
                # A rest that lies half-way between two codes may round either way.
                bound = 1e-5 if kind == Kind.Int8Twice else 2e-6
                assert case.error(kind, x, case.multiply(kind, x)) < bound, (rows, count, kind)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [name for name in TYPES if block_size(name) <= 32])
@pytest.mark.parametrize("cols", [32, 576, 640])
def test_widths_that_are_no_multiple_of_256(isa: str, name: str, cols: int) -> None:
    case = Case(isa, name, 48, cols)
    for count in (1, 20):
        x = activations(count, cols)
        assert case.error(kind_of(name), x, case.multiply(kind_of(name), x)) < 2e-6


@pytest.mark.parametrize("isa", ISAS)
def test_float_weights_of_any_width(isa: str) -> None:
    for name in FLOAT_TYPES:
        for cols in (1, 7, 131):
            case = Case(isa, name, 19, cols)
            for count in (1, 9):
                x = activations(count, cols)
                assert case.error(Kind.F32, x, case.multiply(Kind.F32, x)) < 2e-6


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", QUANTISED_TYPES)
def test_extreme_codes_do_not_overflow(isa: str, name: str) -> None:
    """All bits set and all activations at the limit, in both signs: the sums' worst case."""
    cols = 512
    for fill in (0x00, 0xFF, 0x77, 0x88):
        weights = random_weights(name, 16, cols)
        blocks = weights.reshape(16 * cols // block_size(name), -1)
        ordinary = blocks.copy()
        blocks[:] = fill
        for offset in HALVES.get(name, ()):
            blocks[:, offset : offset + 2] = ordinary[:, offset : offset + 2]
        if name in ("MXFP4", "NVFP4"):
            scales = 1 if name == "MXFP4" else 4
            blocks[:, :scales] = ordinary[:, :scales]
        if name == "IQ1_M":  # its scale is in the upper halves of these bytes
            blocks[:, 49::2] = ordinary[:, 49::2] & 0xF0 | blocks[:, 49::2] & 0x0F
        exact = numbers(name, weights).astype(np.float64)
        matrix = kernels.Matrix(isa, int(TYPES[name]), weights.reshape(-1), 16, cols)
        kind = kind_of(name)
        for sign in (1.0, -1.0):
            for count in (1, 16):
                x = np.full((count, cols), sign * 3, np.float32)
                y = np.empty((count, 16), np.float32)
                kernels.multiply(matrix, kernels.Activations(isa, kind, x), y)
                quantised = as_quantised(kind, x)
                magnitude = np.abs(quantised) @ np.abs(exact).T + 1e-30
                assert (np.abs(y - quantised @ exact.T) / magnitude).max() < 2e-6


@pytest.mark.parametrize("isa", ISAS)
def test_a_second_term_takes_most_of_the_error_away(isa: str) -> None:
    case = Case(isa, "Q4_1", 64, 576)
    x = activations(9, 576)
    exact = x.astype(np.float64) @ case.exact.T
    errors = [np.abs(case.multiply(kind, x) - exact).mean() for kind in (Kind.Int8, Kind.Int8Twice)]
    assert errors[1] < errors[0] / 100


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [Kind.Int16, Kind.Int8Twice])
def test_a_kind_that_does_not_go_with_the_type_is_refused(isa: str, kind: Kind) -> None:
    case = Case(isa, "Q4_0" if kind == Kind.Int16 else "Q8_0", 16, 64)
    with pytest.raises(ValueError, match="don't multiply this kind"):
        case.multiply(kind, activations(1, 64))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_a_row_is_the_same_to_the_bit_in_any_company(isa: str, name: str) -> None:
    case = Case(isa, name, 16 * 6 + 5, 256 * 5)  # more than one stretch of unpacked groups
    x = activations(270, case.cols)  # more than one block of tiles
    for kind in kinds_of(name):
        if isa == "portable":
            x = x[:70]
        together = case.multiply(kind, x)
        for count in (1, 2, 3, 5, 6, 12, 13, 33):
            first = len(x) - count
            alone = case.multiply(kind, np.ascontiguousarray(x[first:]))
            np.testing.assert_array_equal(alone, together[first:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_how_weights_stream_changes_no_bit(isa: str, name: str) -> None:
    case = Case(isa, name, 16 * 4 + 5, 768)
    for count in (1, 2, 9):
        x = activations(count, case.cols)
        usual = case.multiply(kind_of(name), x)
        for stream in ((0, 0, 1), (1, 64, 2), (2, 64, 2), (2, 1 << 20, 2)):
            other = case.multiply(kind_of(name), x, stream=stream)
            np.testing.assert_array_equal(other, usual)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_panel_ranges_give_the_same_and_touch_nothing_else(isa: str, name: str) -> None:
    case = Case(isa, name, 16 * 6 + 5, 512)
    for count in (1, 3, 14):
        x = activations(count, case.cols)
        whole = case.multiply(kind_of(name), x)
        assert np.isfinite(whole).all()
        for begin, end in ((0, 0), (0, 1), (1, 6), (6, 7), (2, 7)):
            part = case.multiply(kind_of(name), x, panel_begin=begin, panel_end=end)
            columns = slice(begin * 16, min(end * 16, case.rows))
            np.testing.assert_array_equal(part[:, columns], whole[:, columns])
            part[:, columns] = np.nan
            assert np.isnan(part).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["F16", "Q4_1", "Q8_0"])
def test_bias_and_accumulation(isa: str, name: str) -> None:
    case = Case(isa, name, 37, 256)
    rng = np.random.default_rng(3)
    bias = rng.standard_normal(case.rows).astype(np.float32)
    for count in (1, 17):
        x = activations(count, case.cols)
        plain = case.multiply(kind_of(name), x)
        before = rng.standard_normal((count, case.rows)).astype(np.float32)
        np.testing.assert_array_equal(case.multiply(kind_of(name), x, bias=bias), plain + bias)
        both = case.multiply(kind_of(name), x, before.copy(), bias=bias, accumulate=True)
        np.testing.assert_array_equal(both, plain + bias + before)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["F32", "Q4_0", "Q4_1", "Q8_0", "Q6_K"])
def test_strange_activations(isa: str, name: str) -> None:
    """Zeros, the tiniest and the largest numbers are numbers; infinity and NaN give NaN in their
    own row and harm no other.
    """
    case = Case(isa, name, 20, 256)
    kind = kind_of(name)
    for count in (8, 16):
        x = activations(count, 256)
        ordinary = case.multiply(kind, x)
        x[0] = 0
        x[1] = 1e-42
        x[2] = np.where(np.arange(256) % 7 == 0, np.float32(1e33), 0)
        x[3, 17] = np.inf
        x[4, 3] = np.nan
        x[5, 200] = -np.inf
        y = case.multiply(kind, x)
        assert not y[0].any()
        assert np.abs(y[1]).max() < 1e-35
        assert np.isfinite(y[2]).all()
        assert not np.isfinite(y[3:6]).any()
        np.testing.assert_array_equal(y[6:], ordinary[6:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Int8, Kind.Int16])
def test_rows_may_be_converted_in_pieces(isa: str, kind: Kind) -> None:
    name = next(name for name in TYPES if kind_of(name) == kind)
    case = Case(isa, name, 16, 256)
    x = activations(11, 256)
    pieces = kernels.Activations(isa, kind, np.full_like(x, 7))
    for begin, end in ((8, 11), (0, 4), (4, 8)):
        pieces.convert(x, begin, end)
    y = np.empty((11, 16), np.float32)
    kernels.multiply(case.matrix, pieces, y)
    np.testing.assert_array_equal(y, case.multiply(kind, x))


def test_kinds_that_do_not_fit_are_refused() -> None:
    case = Case("portable", "Q4_0", 16, 32)
    with pytest.raises(ValueError, match="Q4_0 weights don't multiply"):
        case.multiply(Kind.Int16, activations(1, 32))


@pytest.mark.parametrize("stream", [(3, 0, 1), (-1, 0, 1), (1, -64, 1), (1, 64, 3), (1, 64, 0)])
def test_ways_to_stream_that_there_are_not(stream: tuple[int, int, int]) -> None:
    case = Case(ISAS[0], "Q4_0", 16, 32)
    with pytest.raises(ValueError, match="no such way to stream"):
        case.multiply(kind_of("Q4_0"), activations(1, 32), stream=stream)


def test_how_weights_stream_is_measured_where_they_are_many() -> None:
    weights = _native.Weights(2)
    weights.add_matrix(int(TYPES["F16"]), 2048, 4096)  # 16 MB
    weights.add_matrix(int(TYPES["Q4_0"]), 2048, 4096)
    weights.choose_streams()
    assert weights.streams == []  # nothing is anywhere yet
    weights.hold_image()
    weights.choose_streams()
    measured = {name: rate for name, _, _, _, rate in weights.streams}
    assert measured["F16"] > 1e8
    assert measured["Q4_0"] == 0
    for _, level, ahead, streams, _ in weights.streams:
        assert level in (1, 2)
        assert 4096 <= ahead <= 20480
        assert streams in (1, 2)
