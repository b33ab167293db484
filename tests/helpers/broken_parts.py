"""Parts that break a clause of their contract."""


class BrokenParts(dict):
    """The class and the clause that it breaks, by the class's name."""

    def breaks(self, clause):
        """A decorator: the class breaks this clause."""

        def register(kind):
            self[kind.__name__] = kind, clause
            return kind

        return register
