"""The table of all options of vLLM's server, with their class and its reason.

`python -m testbed.experiments.vllm_server.option_page` prints the page, the site has it.
"""

from testbed.vllm.option_table import UNDERSTOOD, Option, options, releases_of

HEAD = """# Options of vLLM's server

Every option of `vllm serve`, as `testbed fits` and `--from-vllm` read it. *Understood*: it
changes the simulation as it changes vLLM. *Harmless*: it changes neither memory nor time; it is
listed when it is given. *Refused*: it changes the answer and is not modelled; the values in
brackets mean what vLLM does without the option, and are taken. `testbed fits` also takes refused
options that change only the time of iterations.

| option | class | reason | releases |
|---|---|---|---|
"""


def page() -> str:
    """The page in Markdown."""
    rows = (_row(option) for _, option in sorted(options().items()))
    return HEAD + "".join(f"{row}\n" for row in rows)


def _row(option: Option) -> str:
    reason = "read" if option.kind == UNDERSTOOD else option.reason
    if option.for_memory:
        reason += "; time only"
    if option.neutral:
        reason += f" ({', '.join(option.neutral)})"
    return f"| `{option.name}` | {option.kind} | {reason} | {', '.join(releases_of(option.name))} |"


if __name__ == "__main__":
    print(page(), end="")
