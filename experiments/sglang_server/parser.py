"""Writes the options of the installed SGLang's parser, of which testbed/sglang keeps a list.

`python -m testbed.experiments.sglang_server.parser` needs an installed SGLang.
"""

import argparse

from testbed.experiments.real.lockstep.sglang_installation import import_quietly
from testbed.sglang.command import ONE_VALUE, PARSER

KINDS = {"int": "int", "float": "float", "loads": "json", "human_readable_int": "size"}


def installed_options() -> str:
    """A line for each option: its names, the count of its values, their kind, and choices."""
    import_quietly()
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    lines = []
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if names and action.dest != "help":
            count = ONE_VALUE if action.nargs is None else str(action.nargs)
            kind = KINDS.get(getattr(action.type, "__name__", ""), "text")
            choices = sorted(map(str, action.choices or ()))
            lines.append("\t".join([" ".join(names), count, kind, *choices]) + "\n")
    return "".join(lines)


if __name__ == "__main__":
    PARSER.write_text(installed_options(), encoding="utf-8")
