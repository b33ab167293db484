"""Colours of requests, and the textures that tell kinds of slots apart; the page uses the same."""

import numpy as np
from numpy.typing import NDArray

from experiments.memory_map.slot_grid import CACHED, FREE, INTERNAL, LIVE, PINNED, RESERVED, ROUNDING, SEVERAL

# Hues a golden angle apart in OKLCH, three lightnesses: neighbours in order of arrival never look alike.
PALETTE = (
    "#4687d8", "#ea846f", "#008663", "#9d6dc7", "#ca9d33", "#007da5", "#c85e83", "#7bb764", "#5a66b9",
    "#c66a26", "#00beb7", "#965095", "#938a00", "#51adef", "#ad4a4e", "#189f64", "#ab93ed", "#9b5f00",
)  # fmt: skip
SEVERAL_COLOR = "#46505f"
PLAIN = {FREE: "#ffffff", ROUNDING: "#d9dce1", CACHED: "#b4c3d6", PINNED: "#7d8896"}
TINTS = {RESERVED: 0.70, INTERNAL: 0.90}
LINES = {INTERNAL: "#d1495b", ROUNDING: "#8b929c"}
NAMES = {
    LIVE: "token states, colour by request",
    RESERVED: "reserved, will be used",
    INTERNAL: "internal fragmentation (never used)",
    ROUNDING: "external fragmentation (rounding)",
    CACHED: "cached (unreferenced, findable)",
    PINNED: "registered prefix",
    FREE: "free",
}
SHARED_NAME = "shared (several sequences)"

Image = NDArray[np.float32]


def rgb(color: str) -> NDArray[np.float32]:
    """Red, green and blue from 0 to 1."""
    return np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)], np.float32)


def tint(color: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """`color` mixed with that share of white."""
    return color * (1 - share) + share


def color_of(owners: NDArray[np.int64]) -> Image:
    """The base colour of each owner; white where there is none."""
    table = np.array([*(rgb(color) for color in PALETTE), rgb(SEVERAL_COLOR), rgb("#ffffff")])
    ordinary = owners % len(PALETTE)
    return table[np.where(owners >= 0, ordinary, np.where(owners == SEVERAL, len(PALETTE), len(PALETTE) + 1))]


def colored(kind: NDArray[np.int64], owner: NDArray[np.int64], shared: NDArray[np.bool_]) -> Image:
    """The picture of rows x columns of slots, one pixel each, row 0 at the bottom."""
    rows, columns = np.indices(kind.shape, sparse=True)
    image = color_of(owner)
    for code, share in TINTS.items():
        image[kind == code] = tint(image[kind == code], share)
    for code, color in PLAIN.items():
        image[kind == code] = rgb(color)
    image[(kind == INTERNAL) & ((columns - rows) % 9 < 1)] = rgb(LINES[INTERNAL])
    image[(kind == ROUNDING) & ((columns + rows) % 9 < 1)] = rgb(LINES[ROUNDING])
    image[(kind == CACHED) & ((columns % 7 < 2) & (rows % 7 < 2))] = rgb("#ffffff")
    dots = shared & (kind == LIVE) & ((columns + 4 * (rows // 4 % 2)) % 8 < 2) & (rows % 4 < 2)
    image[dots] = rgb("#ffffff")
    return image
