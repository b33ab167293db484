"""Real servers and engines: their profiles, logs and measurements beside simulated runs."""
