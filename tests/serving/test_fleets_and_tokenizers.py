"""Several simulated engines behind one address; tokenizers and chat templates of folders."""

import json
from pathlib import Path

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "openai", "httpx"):
    pytest.importorskip(package, reason=f"serving needs {package}")

import httpx  # noqa: E402
from served import LONG_S, WORDS, running, wait_until  # noqa: E402
from served_elsewhere import rows_of, train_tokenizer  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.serving.api_errors import ApiError  # noqa: E402
from testbed.serving.chat_template import chat_template  # noqa: E402
from testbed.serving.http_server import ServeOptions, make_service  # noqa: E402
from testbed.serving.sequence_text import GeneratedText  # noqa: E402
from testbed.serving.stop_strings import StopStrings  # noqa: E402
from testbed.serving.tokenizer import FolderTokenizer  # noqa: E402

README = Path(__file__).parents[2] / "README.md"
FLEET = ("policy=prefix_caching", "replicas=4", "router=prefix_aware")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system comes first') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
USER = {"role": "user", "content": "hello"}


def post(server, path="completions", **body):
    url = f"{server.url}/v1/{path}"
    return httpx.post(url, json={"model": "opt-13b", **body}, timeout=LONG_S)


def test_replicas_appear_as_one_server_and_the_router_chooses(tmp_path):
    """Prompts with a common beginning go where it is cached; others to engines that are idle."""
    log = tmp_path / "requests.jsonl"
    with running((*WORDS, *FLEET), speed=20.0, log=log) as server:
        prompts = [list(range(i * 1000, i * 1000 + 320)) for i in range(4)]
        for _ in range(3):
            for prompt in prompts:
                answer = post(server, prompt=prompt, max_tokens=3)
                assert answer.json()["usage"]["completion_tokens"] == 3
        engines = server.live.engines
        finished = [engine.recorder.totals.finished for engine in engines]
        hits = [engine.scheduler.policy.counters()["hit_tokens"] for engine in engines]
    assert len(engines) == 4
    assert sum(finished) == len(rows_of(log)) == 12
    assert sum(hits) >= 8 * 300


def test_a_client_that_leaves_frees_the_slots_of_its_replica():
    with running((*WORDS, "replicas=2"), speed=1.0) as server:
        body = {"model": "opt-13b", "prompt": [1] * 50, "max_tokens": 1500, "stream": True}
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=LONG_S) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
            assert server.held > 0
        wait_until(lambda: not server.live.unfinished)
        assert server.held == 0


def test_replicas_that_prefill_for_others_answer_in_full():
    words = (*WORDS, "replicas=2", "prefill_replicas=1")
    with running(words, speed=20.0) as server:
        answer = post(server, prompt=[1] * 50, max_tokens=9)
    assert answer.json()["choices"][0]["text"].split() == [f"w{i}" for i in range(1, 10)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = train_tokenizer(tmp_path_factory.mktemp("model"), [README.read_text("utf-8")])
    config = json.loads((made / "tokenizer_config.json").read_text())
    config |= {"chat_template": TEMPLATE, "bos_token": {"content": "<|end|>"}}
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made


def test_a_folder_counts_prompts_and_writes_chats(folder):
    tokenizer = FolderTokenizer(folder)
    with running(speed=20.0, tokenizer=folder) as server:
        text = "A memory policy is one Python class."
        whole = post(server, prompt=text, max_tokens=1).json()["usage"]["prompt_tokens"]
        chat = post(server, "chat/completions", messages=[USER], max_tokens=1).json()
        wrong = post(server, "chat/completions", messages=[USER, {**USER, "role": "system"}])
    assert whole == len(tokenizer.ids(text)) < len(text) / 2
    prompt = "<|end|><user>hello<assistant>"
    assert chat["usage"]["prompt_tokens"] == len(tokenizer.ids(prompt, is_whole=True))
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "messages")
    assert "the system comes first" in wrong.text


def refused_template(folder, text):
    """The error of a message in a folder with this template."""
    (folder / "chat_template.jinja").write_text(text)
    with pytest.raises(ApiError) as refused:
        chat_template(folder).text([dict(USER)])
    return refused.value


HOSTILE = {
    "attributes": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "change": "{{ messages.append(1) }}",
    "import": "{% include 'tokenizer_config.json' %}",
    "long loop": "{% for i in range(10**9) %}{% endfor %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_cannot_leave_its_sandbox(tmp_path, name):
    assert refused_template(tmp_path, HOSTILE[name]).status == 400


UNFIT = {
    "division": "{{ 1 // (messages | length - 1) }}",
    "no end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "attribute of a text": "{{ messages[0].content.strip(1, 2) }}",
    "text and number": "{{ messages[0].content + 1 }}",
}


@pytest.mark.parametrize("name", UNFIT)
def test_messages_that_do_not_fit_a_template_are_refused(tmp_path, name):
    error = refused_template(tmp_path, UNFIT[name])
    assert "do not fit the model's chat template" in str(error)


def test_folders_that_are_none_are_refused(tmp_path):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    for words in ({}, {"tokenizer.json": "{"}):
        for name, text in words.items():
            (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match="give a model's"):
            make_service(configured(list(WORDS)), ServeOptions(tokenizer=tmp_path))


def test_text_comes_in_whole_characters_and_is_that_of_all_tokens(folder):
    tokenizer = FolderTokenizer(folder)
    text = "Käse 🧀 and 数 tokens"
    ids = tokenizer.ids(text)
    said = GeneratedText(tokenizer.decoder(), len(ids), frozenset(), ())
    pieces = [said.add(token) for token in ids]
    assert "".join(pieces) == said.text == text
    assert (said.reason, said.num_tokens) == ("length", len(ids))
    assert all("\ufffd" not in piece for piece in pieces)


def test_an_end_token_ends_a_text_without_its_own(folder):
    tokenizer = FolderTokenizer(folder)
    (end,) = tokenizer.ids("<|end|>")
    said = GeneratedText(tokenizer.decoder(), 99, frozenset({end}), ())
    for token in (*tokenizer.ids("so far"), end, *tokenizer.ids(" and on")):
        said.add(token)
    assert (said.text, said.reason) == ("so far", "stop")


@pytest.mark.parametrize("size", range(1, 8))
def test_a_stop_string_is_found_however_the_text_is_cut(size):
    text, stops = "one two END three", ("END", "two ENT")
    filtered, passed = StopStrings(stops), ""
    for start in range(0, len(text), size):
        piece, is_stopped = filtered.passed(text[start : start + size])
        passed += piece
        if is_stopped:
            break
    assert is_stopped
    assert passed == "one two "
