"""SGLang's prefix cache: a tree of runs of pages."""
