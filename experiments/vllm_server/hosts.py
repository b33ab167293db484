"""Hosts of a server's GPUs, in words."""

GPUS_OF_HOST = 8


def host_lines(num_gpus: int) -> list[str]:
    """The line that says that so many GPUs are more than one host has; none if they are not."""
    if num_gpus <= GPUS_OF_HOST:
        return []
    return [f"{num_gpus} GPUs are of several hosts if each has {GPUS_OF_HOST} (--nnodes, or Ray)"]


def starting(option: str, num_gpus: int) -> str:
    """The remedy that so many GPUs, the number of an option, are enough, and their hosts."""
    num_hosts = -(-num_gpus // GPUS_OF_HOST)
    hosts = f", on {num_hosts} hosts if each has {GPUS_OF_HOST} GPUs" if num_hosts > 1 else ""
    return f"{option} {num_gpus} starts{hosts}"
