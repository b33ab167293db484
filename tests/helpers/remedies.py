"""The ways out that refusals name: options, values and commands, and whether they exist."""

import ast
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import yaml

import testbed
from testbed import experiments
from testbed.experiments.cli.app import application
from testbed.experiments.runs.choice_names import CONF, GROUPS, KEYS
from testbed.run.config import RunConfig
from testbed.sglang import option_table as of_sglang
from testbed.vllm import option_table as of_vllm

ROOT = Path(experiments.__file__).resolve().parents[1]
SOURCES = ("testbed", "experiments", "kernels", "traces")
LEFT_OUT = re.compile(r"(?P<indent>\s*)# (?P<key>[a-z_]\w*): ")
HEAD = re.compile(r"\n(defaults:|_target_: .*)\n")  # the end of what an option's file begins with
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
OF_COMMAND = re.compile(rf"(?:testbed ([a-z]+(?: [a-z-]+)*?) )?({OPTION.pattern})")
VALUE = re.compile(r"(?<![\w.{}-])([+~]?[a-z_][\w.@/{}]*)=(?=\S)")
COMMAND = re.compile(r"testbed ([a-z]+(?: [a-z][a-z-]+)*)")
OF_CLIENTS = {"--save-detailed", "--save-result", "--debug", "--help"} | {
    "--output-details",
    "--request-rate",
    "--max-concurrency",
}  # vllm bench serve's, and of SGLang's client
OF_USERS = {"a", "b", "cost.roofline", "cost.efficiencies", "tier@server.tiers"}
ANY_NAME = re.compile(r"\{\}|(?<=server\.tiers\.)dram")
SGLANG_OPTIONS = ROOT / "testbed" / "sglang" / "options-0.5.23.txt"


def remedies():
    """Each remedy of the sources, {} for what a run fills in, with its file and line."""
    for top in SOURCES:
        for path in sorted((ROOT / top).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "remedy" not in text or any(part.is_symlink() for part in path.parents):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call):
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield from ((place, text) for text in _of_call(node))


def _of_call(node):
    named = getattr(node.func, "id", getattr(node.func, "attr", ""))
    values = [keyword.value for keyword in node.keywords if keyword.arg == "remedy"]
    values += node.args[:1] if named == "with_remedy" else []
    for value in values:
        yield from _texts(value)


def _texts(node):
    """The texts of an expression: of both branches of a condition."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        yield "".join(parts)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


@cache
def options_of_commands():
    """The options of each command of `testbed`, by its words."""
    return dict(_options(application, ()))


def _options(app, chain):
    arguments = app.assemble_argument_collection() if app.default_command else ()
    names = {name for argument in arguments for name in argument.names}
    yield " ".join(chain), {name for name in names if name.startswith("--")}
    for name, command in app.resolved_commands().items():
        if not name.startswith("-"):
            yield from _options(command, (*chain, name))


@cache
def options_of_servers():
    """The options of vLLM's and SGLang's servers."""
    of_parsers = {name for names in of_vllm.parsers().values() for name in names}
    sglang = set(OPTION.findall(SGLANG_OPTIONS.read_text(encoding="utf-8")))
    return of_parsers | set(of_vllm.options()) | sglang | set(of_sglang.understood())


@cache
def keys():
    """The keys of every option of every group, and the words that choose one."""
    found = {*GROUPS, *KEYS.values(), *KEYS, "hydra.run.dir", "hydra.sweep.dir"}
    found |= {"outputs"} | set(_fields(RunConfig, ""))
    for group in GROUPS:
        for path in (CONF / group).glob("*.yaml"):
            found |= set(_keys_in(path, f"{group}."))
    found |= set(_keys_in(CONF / "software_times.yaml", "cost.software."))
    return found | set(_keys_in(CONF / "memory.yaml", "server."))


def keys_left_out(text):
    """The keys whose values an option's file leaves to the constructor, by the comments that say
    what they are: `# block_size: tokens`.
    """
    body = HEAD.split(text, maxsplit=1)[-1]
    above = ""
    for line in body.splitlines():
        if match := LEFT_OUT.match(line):
            yield f"{above}.{match['key']}" if match["indent"] else match["key"]
        elif line[:1].isalpha():
            above = line.partition(":")[0]


def _keys_in(path, above):
    text = path.read_text(encoding="utf-8")
    yield from (f"{above}{key}" for key in keys_left_out(text))
    yield from _nested(yaml.safe_load(text) or {}, above)


def _fields(kind, above):
    """The dotted names of a dataclass's fields, and of those of the dataclasses in them."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        yield f"{above}{field.name}"
        for inner in (hints[field.name], *_parts(hints[field.name])):
            if is_dataclass(inner):
                yield from _fields(inner, f"{above}{field.name}.{_of_names(hints[field.name])}")


def _parts(hint):
    """The types within a type."""
    for inner in get_args(hint):
        yield inner
        yield from _parts(inner)


def _of_names(hint):
    """Values of a table have a name of the user's between."""
    tables = [of for of in (hint, *_parts(hint)) if get_origin(of) in (Mapping, dict)]
    return "NAME." if tables else ""


def _nested(values, above):
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from _nested(value, f"{above}{key}.")


def api_names():
    """Parameters of the functions of testbed, which notebooks call."""
    functions = "simulate", "sweep", "capacity", "capacities", "check"
    parameters = (signature(getattr(testbed, name)).parameters for name in functions)
    return {name for names in parameters for name in names} | {"rate"}


def is_option(name, *, of_command=None):
    """True if an option exists: of a command of testbed (None: of any), of a server or client."""
    if of_command is None:
        ours = set().union(*options_of_commands().values())
    else:
        ours = options_of_commands()[of_command]
    others = options_of_servers() | OF_CLIENTS
    return name in ours | others or f"--{name.removeprefix('--no-')}" in others


def is_key(name):
    """True if a key exists, but for the names of a user's own in it."""
    wanted = ANY_NAME.sub("NAME", name.lstrip("+~"))
    wanted = wanted.removesuffix(".NAME")  # of a table
    known = keys() | api_names() | OF_USERS
    return any(wanted in (key, key.lstrip("+")) for key in known)


def check_ways_out(arguments, error):
    """Each option that a refusal names as a way out is one of the command that printed it, or of
    the command, server or client that it speaks of.
    """
    chain, _, _ = application.parse_commands(list(arguments))
    _, parenthesis, remedy = error.strip().rpartition(" (")
    for named, option in OF_COMMAND.findall(remedy if parenthesis else ""):
        command = _command_in(named) or " ".join(chain)
        assert is_option(option, of_command=command), f"{option}: {error}"


def _command_in(words):
    """The command with which words begin, such as `lockstep` of `lockstep vllm`."""
    parts = words.split()
    while parts and " ".join(parts) not in options_of_commands():
        parts.pop()
    return " ".join(parts)
