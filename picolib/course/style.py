"""How every picture of the course looks: one palette, one set of sizes, one way to write numbers.

Pictures stand on a light card of their own, because a picture in a notebook cannot know whether the page around it
is light or dark. The rank colours are Okabe and Ito's palette ("Color Universal Design", 2008) with its yellow and
black replaced, so that all of them are visible on the card; a test looks at them through the three kinds of colour
blindness. Colour never stands alone: whatever it says is also written.
"""

from __future__ import annotations

PAPER = "#fbfbf8"  # the card
BORDER = "#dcdcd4"
INK = "#1c2024"  # text
MUTED = "#5a6169"  # secondary text, axes
GRID = "#e4e4de"
EMPTY = "#ecece6"  # a place that holds nothing yet
ACCENT = "#b0003a"  # what a picture wants you to look at: exposed communication, a cycle, a difference
GOOD = "#00704f"

RANK_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#66331a", "#331a80")
# For things that are not ranks (algorithms, runs): Paul Tol's "muted" scheme, darkened where it was faint.
SERIES_COLORS = ("#332288", "#cc6677", "#117733", "#b8860b", "#44aa99", "#882255", "#6699cc", "#666633")

SMALL, NORMAL, LARGE, TITLE = 12, 13, 15, 17  # font sizes in pixels of a picture 800 pixels wide
WIDTH = 800
SANS = "DejaVu Sans, Verdana, Segoe UI, Helvetica, Arial, sans-serif"
MONO = "DejaVu Sans Mono, Menlo, Consolas, monospace"


def rank_color(rank: int) -> str:
    """The colour of a rank, the same in every figure; from rank 8 on colours repeat (the number stands beside)."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def series_color(index: int) -> str:
    """The colour of the index-th line of a chart."""
    return SERIES_COLORS[index % len(SERIES_COLORS)]


def channels(color: str) -> tuple[float, float, float]:
    """Red, green and blue of "#rrggbb", each from 0 to 1."""
    return tuple(int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))  # type: ignore[return-value]


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it: 0 for black, 1 for white."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours as WCAG 2 defines it, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink_on(fill: str) -> str:
    """Black or white, whichever reads better on `fill`."""
    return max((INK, "#ffffff"), key=lambda ink: contrast(ink, fill))


def tint(color: str, share: float) -> str:
    """`color` thinned with the card's own colour; share 1 is the full colour, 0 the card."""
    mixed = (share * c + (1 - share) * p for c, p in zip(channels(color), channels(PAPER), strict=True))
    return "#" + "".join(f"{round(255 * value):02x}" for value in mixed)


def bytes_text(count: float) -> str:
    """Bytes for a reader: exact below 10,000, then KB and MB of 1024, three digits ("4,096 B", "1.5 MB")."""
    if count < 10_000:
        return exact_bytes(count)
    for unit in ("KB", "MB", "GB"):
        count /= 1024
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
    raise AssertionError("unreachable")


def exact_bytes(count: float) -> str:
    """Bytes to the byte ("12,000 B")."""
    return f"{count:,.0f} B"


def size_text(count: float) -> str:
    """A round size at an axis or slider, in the largest unit that fits ("1 KB", "64 MB")."""
    for unit, size in (("GB", 1024**3), ("MB", 1024**2), ("KB", 1024)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def seconds_text(seconds: float) -> str:
    """Seconds for a reader, in the unit that fits, three digits ("35 µs", "1.2 ms", "2.5 s")."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size or unit == "µs":
            return f"{float(f'{seconds / size:.3g}'):g} {unit}"
    raise AssertionError("unreachable")
