"""Words of a command line that change a configuration, such as policy=paged or ++seed=5."""


def key_of(word: str) -> str:
    """The key that the word sets or takes out; signs before it (`+`, `++`, `~`) only say how."""
    return word.partition("=")[0].lstrip("+~")
