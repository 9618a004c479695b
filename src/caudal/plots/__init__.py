"""Reports for a browser: one HTML file of plots and tables, without network and script."""

from caudal.plots.axes import Axis, short_number
from caudal.plots.bars import Bars, bar_plot
from caudal.plots.curves import Curve, Line, line_plot, scatter_plot, step_plot
from caudal.plots.figure import Figure
from caudal.plots.heatmap import heatmap
from caudal.plots.page import Section, page
from caudal.plots.table import Table

__all__ = [
    "Axis",
    "Bars",
    "Curve",
    "Figure",
    "Line",
    "Section",
    "Table",
    "bar_plot",
    "heatmap",
    "line_plot",
    "page",
    "scatter_plot",
    "short_number",
    "step_plot",
]
