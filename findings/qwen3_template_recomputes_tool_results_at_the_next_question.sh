#!/bin/sh
# behaviour: the chat templates of Qwen3, GLM-4-MoE, gpt-oss and Nemotron-3 leave out the thoughts of a tool loop as soon as the user asks again, so that a prefix cache finds nothing behind the first thought: the tools' results, which are most of the prompt, are computed once more
# package: trl 1.16.0
# date: 2026-11-29
# guess: an agent's next prompt begins with the last one, as it does between the steps of the loop, so that only the new question is computed
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.20.2 jinja2==3.1.6
"$folder/venv/bin/pip" install -q --no-deps trl==1.16.0
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
from importlib.metadata import files, version
from itertools import takewhile

from transformers.utils.chat_template_utils import render_jinja_template

LOSE = {"qwen3", "glm4moe", "gptoss", "nemotron_3_nano"}
KEEP = {"qwen2_5", "qwen3_instruct_2507", "llama3_1"}
TEXT = {"type": "object", "properties": {"query": {"type": "string", "description": "words"}}}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Searches."}}
SEARCH["function"]["parameters"] = TEXT
TEMPLATES = {file.stem: file.locate() for file in files("trl") if file.suffix == ".jinja"}


def answer(number, **fields):
    """A message of the model with its thought, under the names that the templates read."""
    thought = f"Step {number}: this needs some thought. " * 4
    return {"role": "assistant", "content": "", "reasoning_content": thought, "thinking": thought, **fields}


def step(number):
    """A call of the tool and its result."""
    call = {"name": "search", "arguments": {"query": f"words {number}"}}
    name = f"call00{number:03}"
    calls = [{"id": name, "type": "function", "function": call}]
    result = {"role": "tool", "name": "search", "tool_call_id": name}
    return [answer(number, tool_calls=calls), {**result, "content": f"found {number} " * 300}]


def prompt(template, messages):
    """The text that the model is given."""
    options = {"tools": [SEARCH], "add_generation_prompt": True}
    text = TEMPLATES[template].read_text()
    (rendered,), _ = render_jinja_template([messages], chat_template=text, **options)
    return rendered


def found(earlier, later):
    """The share of the earlier prompt that the later one begins with."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(earlier, later))]) / len(earlier)


question = {"role": "user", "content": "Find out."}
loop = [question, *step(1), *step(2), *step(3)]
last = {"role": "assistant", "content": "That is it.", "reasoning_content": "Done.", "thinking": "Done."}
asked_again = [*loop, last, {"role": "user", "content": "And now?"}]
print("trl", version("trl"), "has the templates of the models; a loop of three tool calls")
print("guess: a prompt's share that the next one begins with is 1 in the loop, and at the next question")
for name in sorted(LOSE | KEEP):
    steps = [prompt(name, loop[:end]) for end in (3, 5, 7)]
    in_loop = min(found(*pair) for pair in zip(steps, steps[1:]))
    next_question = found(steps[-1], prompt(name, asked_again))
    print(f"seen, {name}: {in_loop:.2f} in the loop, {next_question:.2f} at the next question")
    assert in_loop > 0.99, (name, in_loop)
    assert next_question < 0.2 if name in LOSE else next_question > 0.99, (name, next_question)
END
