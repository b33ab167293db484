#!/bin/sh
# behaviour: a configuration made with rope_theta has no such attribute in transformers 5, so that a reader with a fallback takes the fallback in silence
# package: transformers 5.20.2
# date: 2026-11-28
# guess: getattr(config, "rope_theta", 10000) gives the value of config.json
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.20.2
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
import json
from pathlib import Path

import transformers

print("transformers", transformers.__version__)
Path("model").mkdir()
Path("model/config.json").write_text(json.dumps({"model_type": "llama", "rope_theta": 500000.0}))
config = transformers.AutoConfig.from_pretrained("model")
read = getattr(config, "rope_theta", 10000.0)
print("config.json: rope_theta 500000; getattr with a fallback of 10000:", read)
print("rope_parameters:", config.rope_parameters)
assert read == 10000.0
assert config.rope_parameters["rope_theta"] == 500000.0
assert "rope_theta" not in config.to_dict()
END
