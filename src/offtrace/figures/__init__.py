"""Arrays → matplotlib. Imported lazily, knows nothing of the rest of offtrace. Extra `[plot]`."""

from offtrace.figures.frames import literal
from offtrace.figures.maps import cell_maps, heat_maps
from offtrace.figures.panels import LOOKS, Band, band_panels, interval_bars, line_panels

__all__ = ["LOOKS", "Band", "band_panels", "cell_maps", "heat_maps", "interval_bars", "line_panels", "literal"]
