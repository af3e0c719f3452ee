"""Which name was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean '…'?`` for the closest of the known names, or nothing."""
    wrong, spelled = name.lower(), {one.lower(): one for one in known}
    # A beginning or an abbreviation ("eps", "uq") says more than letters in common; of several, the nearest is meant.
    meant = [one for one in spelled if len(wrong) > 1 and _abbreviates(wrong, one)]
    close = get_close_matches(wrong, meant, n=1, cutoff=0) or get_close_matches(wrong, spelled, n=1)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""


def _abbreviates(short: str, name: str) -> bool:
    """Return whether ``short`` is some letters of ``name`` in their order, the first among them."""
    letters = iter(name)
    return short[0] == name[0] and all(letter in letters for letter in short)
