"""A command of SGLang's server as overrides."""
