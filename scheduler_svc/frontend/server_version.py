"""The version of the server, as clients are told it. Knows nothing about the contracts that carry it."""

from importlib.metadata import PackageNotFoundError, version


def server_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("stepwire")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
