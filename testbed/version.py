"""The version of this package."""


def release() -> str | None:
    """The installed version; None for a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvcache-testbed")
    except PackageNotFoundError:
        return None
