"""YAML as OmegaConf reads it: 1e-3 is a number, a date is text, and a key stands once.

libyaml reads and writes it if PyYAML was built with it, several times as fast as Python.
"""

import re
from typing import Any, ClassVar

import yaml

BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
TEXT, DATE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"
EXPONENT = re.compile(r"[-+]?\d+(_\d+)*(\.[\d_]*)?[eE][-+]?\d+$")  # for which PyYAML wants a sign


class Loader(BASE):  # type: ignore[misc]
    """PyYAML's safe loader with OmegaConf's rules."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != DATE]
        for first, resolvers in BASE.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The values by key. Raises yaml.YAMLError for a key that is there twice."""
        keys = set[str]()
        for key in (key for key, _ in node.value if key.tag == TEXT):
            if key.value in keys:
                problem = f"found duplicate key {key.value}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        values: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return values


Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


def yaml_values(text: str) -> Any:
    """The values of a text; of an empty one an empty mapping. Raises yaml.YAMLError."""
    values = yaml.load(text, Loader)
    return {} if values is None else values


def written_values(text: str) -> Any:
    """The values of a text that `yaml_text` wrote, by PyYAML's rules. Raises yaml.YAMLError."""
    return yaml.load(text, BASE)


def yaml_text(values: Any) -> str:
    """The values as a text of YAML, keys in their order."""
    text: str = yaml.dump(values, Dumper=DUMPER, sort_keys=False, allow_unicode=True)
    return text
