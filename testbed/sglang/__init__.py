"""SGLang: the command of its server, and what its options are here."""
