"""The engine over several GPUs of one host: tensor parallelism (section 4.6 of the paper)."""
