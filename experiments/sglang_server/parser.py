"""Writes the options of the installed SGLang's parser, of which testbed/sglang keeps a list.

`python -m testbed.experiments.sglang_server.parser` needs an installed SGLang.
"""

import argparse

from testbed.experiments.real.lockstep.sglang_installation import import_quietly
from testbed.sglang.command import PARSER


def installed_options() -> str:
    """A line for each option: its long names, and whether it is a flag."""
    import_quietly()
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    lines = []
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if names and action.dest != "help":
            lines.append(f"{' '.join(names)}\t{'flag' if action.nargs == 0 else 'value'}\n")
    return "".join(lines)


if __name__ == "__main__":
    PARSER.write_text(installed_options(), encoding="utf-8")
