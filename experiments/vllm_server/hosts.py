"""Hosts of a server's GPUs, in words."""

GPUS_OF_HOST = 8


def host_lines(num_gpus: int) -> list[str]:
    """The line that num_gpus GPUs are more than one host has, if they are."""
    if num_gpus <= GPUS_OF_HOST:
        return []
    return [f"{num_gpus} GPUs are of several hosts if each has {GPUS_OF_HOST} (--nnodes, or Ray)"]


def starting(option: str, num_gpus: int) -> str:
    """The remedy that num_gpus GPUs, set by `option`, are enough, and their hosts."""
    num_hosts = -(-num_gpus // GPUS_OF_HOST)
    hosts = f", on {num_hosts} hosts if each has {GPUS_OF_HOST} GPUs" if num_hosts > 1 else ""
    return f"{option} {num_gpus} starts{hosts}"
