"""The values of a composed configuration, those that follow from others computed. Most are those of
one other key, `${software.name}`, and looked up here: OmegaConf's grammar takes most of the time of
typing a configuration.
"""

import re
from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any

from omegaconf import DictConfig, OmegaConf

SAME_AS = re.compile(r"\$\{(?P<key>\w+(\.\w+)*)\}")
FOLLOWS = "${"


def resolved_values(config: DictConfig) -> Any:
    """The plain values, as OmegaConf resolves them; raises its errors for a value that is missing
    or cannot be computed.
    """
    values: Any = OmegaConf.to_container(config, throw_on_missing=True)
    nodes: list[tuple[tuple[Any, ...], Any]] = [((), values)]
    while nodes:
        place, node = nodes.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                nodes.append(((*place, key), value))
            elif isinstance(value, str) and FOLLOWS in value:
                same = SAME_AS.fullmatch(value)
                try:
                    found = reduce(getitem, same["key"].split("."), values) if same else value
                except (LookupError, TypeError):
                    found = value  # of no key, which OmegaConf says
                if FOLLOWS in str(found):
                    found = reduce(getitem, (*place, key), config)
                is_node = OmegaConf.is_config(found)
                node[key] = (
                    OmegaConf.to_container(found, resolve=True) if is_node else deepcopy(found)
                )
    return values
