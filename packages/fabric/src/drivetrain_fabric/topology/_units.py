"""Quantities for people: three digits, and a unit in which they are short."""

from __future__ import annotations

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def bytes_text(size: int) -> str:
    """Returns an amount of memory.

    Example:
        >>> bytes_text(85_520_809_984), bytes_text(1 << 40)
        ('80 GiB', '1 TiB')
    """
    for unit, name in _BINARY:
        if size >= unit:
            return (
                f"{size / unit:.3g} {name}"
                if size < 10 * unit
                else (f"{size / unit:.0f} {name}")
            )
    return f"{size} B"


def scale(most: float) -> tuple[float, str]:
    """Returns the unit in which a number is short: how large it is, and its prefix.

    Example:
        >>> scale(2.5e9), scale(3e-5)
        ((1000000000.0, 'G'), (1e-06, 'u'))
    """
    for unit, prefix in (*_PREFIXES, *_SMALL):
        if most >= unit:
            return unit, prefix
    return _SMALL[-1]


def speed_text(mbit_per_s: int | None) -> str:
    """Returns the speed of a network card.

    Example:
        >>> speed_text(400_000), speed_text(2_500), speed_text(None)
        ('400 Gb/s', '2.5 Gb/s', 'speed unknown')
    """
    if mbit_per_s is None:
        return "speed unknown"
    unit, prefix = scale(mbit_per_s * 1e6)
    return f"{mbit_per_s * 1e6 / unit:.4g} {prefix}b/s"


def amount(value: float, unit: str) -> str:
    """Returns a number with its unit.

    Example:
        >>> amount(325e6, "B/s"), amount(0.00009, "s")
        ('325 MB/s', '90 us')
    """
    size, prefix = scale(value)
    return f"{value / size:.3g} {prefix}{unit}"
