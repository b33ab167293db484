"""`testbed completion`: the tab completion of a shell."""

from collections.abc import Iterator
from typing import Annotated, Literal

from cyclopts import App, Parameter

# The library's script for bash takes every word that is any command's name for a part of the
# command, such as `model` of `testbed run model=opt-13b`; only a path of commands is one.
IS_ANY_COMMAND = '[[ " $all_commands " =~ " $word " ]]'
IS_NEXT_COMMAND = '[[ "$paths" == *":${cmd_path[*]:+${cmd_path[*]} }$word:"* ]]'
# It also lets bash put a space after each completed word; after `policy=` none fits.
WITHOUT_SPACE = """
_testbed_without_space() {
  _testbed
  [[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o default -F _testbed_without_space testbed"""
# For `eval`: zsh loads its completion system, and then defines and names the function.
ZSH_START = "autoload -Uz compinit && compinit"


def completion(
    shell: Annotated[
        Literal["bash", "zsh"],
        Parameter(name="SHELL", help="the shell that reads the script"),
    ],
    /,
) -> None:
    """Print the tab completion of a shell.

    For bash, put eval "$(testbed completion bash)" into ~/.bashrc; for zsh, put
    eval "$(testbed completion zsh)" into ~/.zshrc.
    """
    from testbed.experiments.cli.app import application

    script = application.generate_completion(shell=shell)
    if shell == "zsh":
        print(f"{ZSH_START}\n{script}\ncompdef _cyclopts_testbed testbed")
        return
    if IS_ANY_COMMAND not in script:
        raise RuntimeError("the library's script for bash has changed")
    paths = ":".join(" ".join(words) for words in paths_of_commands(application))
    declaration = f'  local paths=":{paths}:"\n'
    start = "  # Detect command path"
    script = script.replace(start, f"{declaration}{start}").replace(IS_ANY_COMMAND, IS_NEXT_COMMAND)
    print(script + WITHOUT_SPACE)


def paths_of_commands(app: App, *above: str) -> Iterator[tuple[str, ...]]:
    """Every command and group below an app, each as its words."""
    for name, command in app.resolved_commands().items():
        if not name.startswith("-"):
            yield (*above, name)
            yield from paths_of_commands(command, *above, name)
