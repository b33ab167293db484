#!/bin/sh
# behaviour: mistral-common puts the definitions of tools (up to tokenizer version 11), and up to version 3 the system prompt too, before the last user message, so that each new question moves them, and a prefix cache finds nothing of them nor of what came behind
# package: mistral-common 1.13.1
# date: 2026-11-29
# guess: tools and system prompt begin the prompt, so that all turns of all conversations share them in a prefix cache
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mistral-common==1.13.1 sentencepiece==0.2.1
cd "$folder"
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version
from itertools import takewhile

from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, Tool
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

RULES = "Answer in one sentence and name your sources. " * 100
TEXT = {"type": "object", "properties": {"query": {"type": "string"}}}
SEARCH = Tool(function=Function(name="search", description=RULES, parameters=TEXT))
CHAT = [
    UserMessage(content="Which cache holds the keys and values of a prompt?"),
    AssistantMessage(content="The KV cache."),
    UserMessage(content="And of which prompts does it find a part?"),
    AssistantMessage(content="Of those that begin alike."),
    UserMessage(content="How long is that part?"),
]


def prompts(tokenizer, head, tools):
    """The prompt of each of three questions in a conversation."""
    for end in (1, 3, 5):
        request = ChatCompletionRequest(messages=[*head, *CHAT[:end]], tools=tools)
        yield tokenizer.encode_chat_completion(request).tokens


def shared(earlier, later):
    """The number of tokens with which both begin."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(earlier, later))])


print("mistral-common", version("mistral-common"), "- a conversation of three questions")
print("guess: each prompt begins with the whole prompt before it")
seen = {}
for name, tokenizer in (("v3", MistralTokenizer.v3()), ("v7", MistralTokenizer.v7())):
    for what in ("neither", "system prompt", "tools"):
        head = [SystemMessage(content=RULES)] if what == "system prompt" else []
        first, second, third = prompts(tokenizer, head, [SEARCH] if what == "tools" else None)
        lengths = len(first), len(second)
        found = shared(first, second), shared(second, third)
        print(f"seen, {name}, {what}: of the prompts' {lengths} tokens the next finds {found}")
        seen[name, what] = [have / length for have, length in zip(found, lengths)]
for name, what in (("v3", "neither"), ("v7", "neither"), ("v7", "system prompt")):
    assert seen[name, what] == [1, 1], (name, what)
for name, what in (("v3", "system prompt"), ("v3", "tools"), ("v7", "tools")):
    assert max(seen[name, what]) < 0.05, (name, what)
END
