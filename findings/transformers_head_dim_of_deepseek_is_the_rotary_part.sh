#!/bin/sh
# behaviour: head_dim of a DeepSeek-V3 configuration is the rotary part of a key (64), not the size of a head (192 or 128), nor anything that the cache stores
# package: transformers 5.20.2
# date: 2026-11-28
# guess: 2 x layers x num_key_value_heads x head_dim is the number of cached values of a token, as for other models
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.20.2
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
import transformers

print("transformers", transformers.__version__)
config = transformers.DeepseekV3Config()
layers, heads = config.num_hidden_layers, config.num_key_value_heads
guess = 2 * layers * heads * config.head_dim
latent = layers * (config.kv_lora_rank + config.qk_rope_head_dim)
whole = layers * heads * (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim)
print("head_dim", config.head_dim, "of keys of", config.qk_nope_head_dim + config.qk_rope_head_dim)
print("values of a token: by the guess", guess, "- latents", latent, "- keys and values", whole)
assert config.head_dim == config.qk_rope_head_dim == 64
assert (guess // latent, whole / guess) == (28, 2.5)
print("the guess is 28 times the latents that servers cache, and 2.5 times too few whole heads")
END
