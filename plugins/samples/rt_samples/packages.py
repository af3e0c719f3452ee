"""Files that other packages ship, found without importing those packages, and what to say when they are not there."""

from importlib.util import find_spec
from pathlib import Path

__all__ = ["missing", "shipped_file"]


def shipped_file(package: str, *parts: str, entry: str, distribution: str, extra: str) -> Path:
    """Return the path of a file in an installed package; the package is not imported, and nothing is ever downloaded.

    package: as imported; distribution: as installed; entry: what reads the file; extra: of rt-samples, which installs it.

    Raises:
        ImportError: the package is not installed, or this version of it ships no such file.
    """
    try:
        spec = find_spec(package)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise missing(entry, distribution, extra)
    path = Path(spec.origin).parent.joinpath(*parts)
    if not path.is_file():
        raise missing(entry, distribution, extra, why=f"it is installed without the file {'/'.join(parts)}")
    return path


def missing(entry: str, distribution: str, extra: str, *, why: str = "it is not installed") -> ImportError:
    """Return the error that says what an entry needs and how to install it."""
    return ImportError(f'{entry} needs the package {distribution}: {why}; to install it: pip install "rt-samples[{extra}]"')
