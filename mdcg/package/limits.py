"""What a package may have at most; the same numbers as in ``csrc/engine/limits.hpp``.

Far above any model, and low enough that sizes fit their types in the engine and that a file of a
few bytes cannot ask for hours or all memory. A test compares both files.
"""

from __future__ import annotations

from typing import Final

#: What safetensors allows.
MAX_HEADER_BYTES: Final = 100_000_000
#: Of nested JSON.
MAX_DEPTH: Final = 64
MAX_TYPES: Final = 1000
MAX_ATOMIC_NUMBER: Final = 199
#: Of a cutoff, Å.
MAX_LENGTH: Final = 1000.0
#: How far cutoffs of layers may lie beyond the package's, relative.
LENGTH_TOLERANCE: Final = 1e-6
#: And values.
MAX_LAYERS: Final = 10_000
#: Of an irrep.
MAX_MULTIPLICITY: Final = 1 << 16
#: Of an irrep.
MAX_DEGREE: Final = 16
#: Of spherical harmonics.
MAX_HARMONICS_DEGREE: Final = 12
#: Of a value, padded to 64 bytes; of all descriptors together.
MAX_ROW_ITEMS: Final = 1 << 24
#: Of a convolution.
MAX_PATHS: Final = 10_000
MAX_RADIAL_LAYERS: Final = 16
#: Outputs of a layer of a radial network.
MAX_RADIAL_WIDTH: Final = 1 << 20
MAX_CHEBYSHEV_ORDER: Final = 4096
MIN_KNOTS: Final = 4
MAX_KNOTS: Final = 1 << 16
MIN_CUTOFF_POWER: Final = 2.0
MAX_CUTOFF_POWER: Final = 200.0
#: Of the repulsion of nuclei.
MAX_SCREENING_TERMS: Final = 16
