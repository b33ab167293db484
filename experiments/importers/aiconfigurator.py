"""x"""

NAME = "AIConfigurator"


def is_here(folder):
    return False
